"""A pack with a flipped bit, a missing file, or parts of another pack is refused."""

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack, verify
from app.ledger.notes import Signer
from tests.support.evidence.verifying import answer
from tests.unit.verify import packs
from tests.unit.verify.authorities import authority
from tests.unit.verify.pack.checking import (
    EVIDENCE,
    PACK,
    TOLD,
    UNKNOWN_PACKER,
    anchor_with,
    checked,
    files_of,
    resealed,
    zipped,
)
from tests.unit.verify.stamped_packs import with_stamp


def everywhere(data: bytes) -> Iterator[tuple[str, int]]:
    """Places in a pack, with the file that each is in: all of small files, some of large ones."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        places = [
            (each.header_offset, each.filename, each.file_size) for each in archive.infolist()
        ]
    end = places[-1][0] + 30 + len(places[-1][1]) + places[-1][2]
    for offset, name, size in places:
        start = offset + 30 + len(name)
        yield from ((name, at) for at in range(offset, start))
        step = 1 if size < 100 else size // 25
        yield from ((name, at) for at in range(start, start + size, step))
    yield from (("archive", at) for at in range(end, len(data), 5))


def test_one_flipped_bit_anywhere_is_refused_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "pack.zip"
    for number, (name, at) in enumerate(everywhere(PACK)):
        spoiled = bytearray(PACK)
        spoiled[at] ^= 1 << number % 8
        path.write_bytes(spoiled)
        found = answer(path)
        assert found.code in (1, 2), (name, at)
        if name != "archive" and found.code == 1 and at > 4:
            line = next(line for line in found.text.splitlines() if line.startswith("INVALID"))
            assert name in line or "no name of a file" in line, (name, at, line)


@pytest.mark.parametrize("name", sorted(files_of(PACK)))
def test_one_flipped_bit_in_a_folder_is_refused_with_the_files_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(PACK)
    for other, data in files.items():
        (tmp_path / other).write_bytes(data)
    monkeypatch.setattr(verify, "__file__", str(tmp_path / "verify.py"))
    assert answer().code == 0
    data = files[name]
    for number, at in enumerate({0, len(data) // 3, len(data) // 2, len(data) - 1}):
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << number % 8
        (tmp_path / name).write_bytes(spoiled)
        found = answer()
        assert found.code == 1
        assert name in found.text.splitlines()[-1], found.text


def test_a_file_that_is_missing_is_incomplete_and_one_too_many_invalid(tmp_path: Path) -> None:
    files = files_of(PACK)
    for name in files:
        rest = {other: data for other, data in files.items() if other != name}
        found = checked(tmp_path, zipped(rest))
        assert found.code == 1
        assert name in found.text
        assert "INCOMPLETE" in found.verdicts.values()
    found = checked(tmp_path, zipped(files | {"notes.txt": b""}))
    assert found.code == 1
    assert "notes.txt" in found.text


def test_a_signature_of_another_bundle_is_refused(tmp_path: Path) -> None:
    other = files_of(b"".join(pack.write(packs.evidence(packs.bundle_of(8)))))
    files = files_of(PACK)
    found = checked(tmp_path, resealed(files | {"bundle.sig": other["bundle.sig"]}))
    assert found.of("INVALID") == ["bundle.sig"]


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (
            ["bundle.json", "bundle.sig"],
            {"inclusion", "manifest.json", "prov.json", "findings.json", "session-proof.json"},
        ),
        (["prov.json"], {"prov.json"}),
        (["findings.json"], {"findings.json"}),
        (["session-proof.json"], {"session-proof.json"}),
        (["session-statement.json"], {"session-statement.sig", "session-proof.json"}),
        (["session-statement.sig"], {"session-statement.sig"}),
        (["session-statement.json", "session-statement.sig"], {"session-proof.json"}),
        (
            ["session-proof.json", "session-statement.json", "session-statement.sig"],
            {"session-proof.json"},
        ),
        (["anchor.json"], {"inclusion", "checkpoint", "record.tlog-proof", "manifest.json"}),
        (["record.tlog-proof"], {"record.tlog-proof"}),
        (["checkpoint"], {"checkpoint"}),
        (
            ["anchor.json", "record.tlog-proof", "checkpoint"],
            {"inclusion", "manifest.json"},
        ),
        (
            ["public-key.pem"],
            {"bundle.json", "bundle.sig", "session-statement.json", "session-statement.sig"},
        ),
        (["pack-key.pem"], {"SHA256SUMS.sig", "manifest.json"}),
    ],
)
def test_parts_of_another_pack_do_not_fit(
    tmp_path: Path, names: list[str], refused: set[str]
) -> None:
    if names[0].endswith(".pem"):
        other = packs.evidence(key=packs.NEXT_KEY)
    else:
        other = packs.evidence(packs.bundle_of(8), others=6)
    strange = files_of(b"".join(pack.write(other)))
    files = files_of(PACK) | {name: strange[name] for name in names}
    found = checked(tmp_path, resealed(files))
    assert found.code == 1
    assert set(found.of("INVALID")) == refused, found.text


def test_another_records_manifest_is_refused(tmp_path: Path) -> None:
    for told in (
        {"record_id": packs.record(8)["id"]},
        {"release": "9.9.9"},
        {"pack_key_id": packs.NEXT_KEY.public.id},
        {"checkpoint": {"origin": packs.ORIGIN, "size": 7, "root": "00" * 32}},
    ):
        found = checked(tmp_path, resealed(files_of(PACK), **told))
        assert found.of("INVALID") == ["manifest.json"]


def test_a_forger_s_log_and_pack_key_are_reported_as_unknown(
    tmp_path: Path, roots: list[object]
) -> None:
    """A true bundle, said to be in a log that is nobody's, under a key "rotated since"."""
    log = Signer(packs.ORIGIN, packs.private_key(66))
    forged = packs.evidence(EVIDENCE.bundle, pack_key=packs.NEXT_KEY, log=log)
    data = b"".join(pack.write(forged))
    found = checked(tmp_path, data, *roots[:2])
    assert re.fullmatch(f"VALID, WITH [0-9]+ NOT CHECKED; {UNKNOWN_PACKER}", found.last)
    assert {"pack-key.pem", "the log's key"} <= set(found.of("NOT CHECKED"))
    assert checked(tmp_path, data, *roots[:2], "--strict").code == 2
    assert checked(tmp_path, data, *roots).code == 1


def test_what_only_the_packer_tells_is_not_checked_unless_he_is_known(
    tmp_path: Path, roots: list[object]
) -> None:
    """A true bundle and log, packed again by somebody else with words of his own."""
    true = packs.evidence(pack_key=packs.NEXT_KEY, witnesses=[9, 10], release="99.9")
    files = files_of(b"".join(pack.write(true)))
    files["prov.json"] = files["prov.json"].replace(b"ana%40example", b"eve%40example")
    files["README.txt"] = files["README.txt"].replace(b"openssl pkeyutl", b"echo Verified #")
    data = resealed(files, packs.NEXT_KEY)
    found = checked(tmp_path, data, *roots)
    assert (found.code, found.of("NOT CHECKED")) == (0, ["pack-key.pem", *TOLD]), found.text
    assert found.last == f"VALID, WITH 6 NOT CHECKED; {UNKNOWN_PACKER}"
    assert "release: 99.9" in found.text
    assert checked(tmp_path, data, *roots, "--strict").code == 2
    files["prov.json"] = files["prov.json"].replace(b'"rs:sha256":"', b'"rs:sha256":"0')
    assert checked(tmp_path, resealed(files, packs.NEXT_KEY), *roots).of("INVALID") == ["prov.json"]


@pytest.mark.parametrize(
    "said",
    [
        "the service's own log alone",
        "the service's own log, with one cosignature",
        "the service's own log, with a timestamp of 2019-01-01T00:00:00.000000Z and 2 cosignatures",
        "the service's own log, with 3 cosignatures",
        None,
    ],
)
def test_what_anchors_a_pack_is_held_to_what_is_there(tmp_path: Path, said: Any) -> None:
    anchor = anchor_with(lambda value: value.update(anchored_by=said))
    found = checked(tmp_path, resealed(files_of(PACK) | {"anchor.json": anchor}))
    assert (found.code, found.verdicts["anchor.json"]) == (1, "INVALID")


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_verifier_knows_every_sentence_on_what_anchors_a_pack(
    tmp_path: Path, count: int, stamped: bool
) -> None:
    evidence = packs.evidence(witnesses=[9, 10][:count])
    if stamped:
        evidence = with_stamp(evidence, authority())
    found = checked(tmp_path, b"".join(pack.write(evidence)))
    assert (found.code, found.verdicts["anchor.json"]) == (0, "VALID"), found.text


RECORD_ID = packs.record()["id"]


def findings_with(*findings: dict[str, Any], total: int | None = None) -> bytes:
    data = pack.findings_file(RECORD_ID, findings, len(findings) if total is None else total)
    return resealed(files_of(PACK) | {"findings.json": data})


@pytest.mark.parametrize(
    "findings",
    [
        [packs.finding(1, packs.record(8)["id"])],
        [packs.finding(2, RECORD_ID), packs.finding(1, RECORD_ID)],
        [packs.finding(1, RECORD_ID), packs.finding(1, RECORD_ID)],
        [packs.finding(1, RECORD_ID, created_at="yesterday")],
        [packs.finding(1, RECORD_ID, cleared=True)],
        [packs.finding(1, RECORD_ID, severity=None)],
    ],
)
def test_findings_of_others_or_out_of_order_are_refused(
    tmp_path: Path, findings: list[dict[str, Any]]
) -> None:
    found = checked(tmp_path, findings_with(*findings))
    assert (found.code, found.of("INVALID")) == (1, ["findings.json"]), found.text


def test_findings_that_are_fewer_than_were_made_say_so(tmp_path: Path, roots: list[object]) -> None:
    found = checked(tmp_path, findings_with(packs.finding(1, RECORD_ID), total=3), *roots)
    assert (found.code, found.of("NOT CHECKED")) == (0, ["findings.json"]), found.text
    assert "it has the first 1 of 3 findings" in found.text
    none = checked(tmp_path, findings_with(), *roots, "--strict")
    assert (none.code, none.last) == (0, "VALID"), none.text
    assert checked(tmp_path, findings_with(packs.finding(1, RECORD_ID), total=0)).code == 1


def test_a_pack_without_its_findings_is_a_pack_of_before(
    tmp_path: Path, roots: list[object]
) -> None:
    """Only who holds the pack's key can take them out."""
    files = {name: data for name, data in files_of(PACK).items() if name != "findings.json"}
    assert "findings.json" in checked(tmp_path, zipped(files)).of("INCOMPLETE")
    assert checked(tmp_path, resealed(files), *roots).last == "VALID"
