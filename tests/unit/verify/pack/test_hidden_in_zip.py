"""A ZIP that another program would unpack differently is refused."""

import io
import itertools
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack
from app.evidence.pack.archive import Archive, of_bytes
from app.evidence.timestamps import Stamp
from tests.support.evidence.verifying import answer
from tests.unit.verify.authorities import authority, gen_time
from tests.unit.verify.pack.checking import (
    EVIDENCE,
    PACK,
    TOLD,
    checked,
    files_of,
    resealed,
    zipped,
)


def patched(at: int, value: bytes) -> bytes:
    return PACK[:at] + value + PACK[at + len(value) :]


END = len(PACK) - 22
DIRECTORY = int.from_bytes(PACK[END + 16 : END + 20], "little")


def by_zipfile(change: Callable[[zipfile.ZipFile], object], **options: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:
        for name, data in files_of(PACK).items():
            archive.writestr(zipfile.ZipInfo(name), data, options.get("compression"))
        change(archive)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        PACK + b"\0",
        b"\0" + PACK,
        PACK[:-1],
        PACK[: len(PACK) // 2],
        PACK[:22],
        PACK + PACK,
        b"",
        b"PK",
        PACK[END:],
        patched(END + 20, b"\x01\x00") + b"x",
        patched(END + 10, b"\xff\xff"),
        patched(END + 8, b"\xff\xff\xff\xff"),
        patched(END + 16, b"\xff\xff\xff\xff"),
        patched(END + 12, b"\xff\xff\xff\xff"),
        patched(END + 16, (DIRECTORY - 46).to_bytes(4, "little")),
        PACK[:DIRECTORY] + b"hidden" + PACK[DIRECTORY:],
        PACK[:DIRECTORY]
        + b"hidden"
        + PACK[DIRECTORY:END]
        + PACK[END : END + 16]
        + (DIRECTORY + 6).to_bytes(4, "little")
        + b"\0\0",
        by_zipfile(lambda _: None),
        by_zipfile(lambda _: None, compression=zipfile.ZIP_DEFLATED),
        by_zipfile(lambda archive: setattr(archive, "comment", b"hidden")),
        by_zipfile(lambda archive: archive.writestr("../evil", b"")),
        by_zipfile(lambda archive: archive.writestr("/etc/evil", b"")),
        zipped({}),
        zipped({"../evil": b""}),
        zipped({"a/b": b""}),
        zipped({"..": b""}),
        zipped({"": b""}),
        zipped({"A" * 65: b""}),
        zipped({f"f{number:03}": b"" for number in range(65)}),
        zipped(files_of(PACK)).replace(b"bundle.sig", b"bundle.sih"),
        zipped(files_of(PACK)).replace(b"bundle.sig", b"anchor.sig"),
    ],
    # Some hold the time at which they are made, so their bytes name no test.
    ids=map(str, itertools.count()),
)
def test_a_zip_that_is_not_exactly_its_files_is_refused(tmp_path: Path, data: bytes) -> None:
    found = checked(tmp_path, data)
    assert found.code in (1, 2)
    assert not found.text.splitlines()[0].startswith("VALID        archive") or data == zipped({})


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_pack_that_another_program_zipped_can_be_checked_unzipped(
    tmp_path: Path, roots: list[object], method: int
) -> None:
    out, folder = io.BytesIO(), tmp_path / "unzipped"
    with zipfile.ZipFile(out, "w", compression=method) as archive:
        for name, data in reversed(files_of(PACK).items()):
            archive.writestr(name, data)
    found = checked(tmp_path, out.getvalue())
    assert (found.code, found.of("INVALID")) == (1, ["archive"])
    assert "another program" in found.text
    assert "README.txt" not in found.text
    zipfile.ZipFile(out).extractall(folder)
    assert "check the folder" in found.text
    found = answer(folder, *roots, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text
    (folder / "bundle.json").write_bytes(b"{}")
    assert answer(folder, *roots).code == 1


def test_a_name_twice_in_a_zip_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files_of(PACK).items():
            archive.writestr(zipfile.ZipInfo(name), data)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(zipfile.ZipInfo("bundle.json"), b"{}")
    assert checked(tmp_path, out.getvalue()).code == 1
    archive_of_two = Archive([of_bytes("a", b"1"), of_bytes("b", b"2")])
    data = b"".join(archive_of_two).replace(b"b", b"a")
    assert checked(tmp_path, data).code == 1


def test_seeded_mutations_never_pass_and_never_raise(tmp_path: Path) -> None:
    random_ = random.Random(20260131)
    path = tmp_path / "pack.zip"
    pieces = [b"PK\1\2", b"PK\3\4", b"PK\5\6", b"\xff" * 4, b"\0" * 8, b'{"a":', b"\x30\x80"]
    for _ in range(400):
        data = bytearray(PACK)
        for _ in range(random_.randint(1, 4)):
            at = random_.randrange(len(data))
            kind = random_.randrange(5)
            if kind == 0:
                data[at] ^= 1 << random_.randrange(8)
            elif kind == 1:
                del data[at : at + random_.randint(1, 2000)]
            elif kind == 2:
                data[at:at] = random_.choice(pieces)
            elif kind == 3:
                other = random_.randrange(len(data))
                data[at:at] = data[other : other + random_.randint(1, 500)]
            else:
                data[at : at + 4] = random_.choice(pieces)
        if bytes(data) == PACK:
            continue
        path.write_bytes(data)
        assert answer(path).code in (1, 2)


def test_seeded_mutations_of_files_within_sound_sums_never_raise(tmp_path: Path) -> None:
    """Whoever holds the pack's key may write anything; the reader must still stand."""
    by = authority("p256")
    response = by.stamp_by_openssl(EVIDENCE.checkpoint, tmp_path)
    timestamp = Stamp(response, by.chain.decode(), gen_time(response))
    files = files_of(b"".join(pack.write(replace(EVIDENCE, timestamp=timestamp))))
    random_ = random.Random(7)
    names = [name for name in files if name not in ("verify.py", "README.txt", "SHA256SUMS.sig")]
    for _ in range(60):
        name = random_.choice(names)
        data = bytearray(files[name])
        for _ in range(random_.randint(1, 3)):
            at = random_.randrange(len(data) or 1)
            data[at : at + random_.randrange(4)] = random_.randbytes(random_.randrange(4))
        spoiled = (
            resealed(files | {name: bytes(data)})
            if "manifest" not in name
            else zipped(files | {name: bytes(data)})
        )
        found = checked(tmp_path, spoiled)
        assert found.code in (0, 1)
        if bytes(data) != files[name] and name not in ("tsa-chain.pem", *TOLD):
            # A comment in a PEM file, and what only the packer tells, mean nothing to it.
            assert found.code == 1 or "checkpoint.tsr" in name or name == "SHA256SUMS", name
