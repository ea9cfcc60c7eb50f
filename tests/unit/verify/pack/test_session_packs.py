"""The pack of a session: each changed bit, line and file of it is found, and named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack
from app.lib import canonical_json
from tests.support.evidence.verifying import answer
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import checked, files_of, resealed, zipped
from tests.unit.verify.pack.test_changed_files import everywhere

PACK = b"".join(pack.write_session(packs.session_evidence()))
FILES = files_of(PACK)
Lines = list[bytes]


def test_a_session_is_verified_whole(tmp_path: Path, roots: list[object]) -> None:
    found = checked(tmp_path, PACK, *roots, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert "records.ndjson: 6 of 7 are here; 1 have expired" in found.text
    assert "bundles.ndjson: 6 of 7 are here, each signed" in found.text
    assert checked(tmp_path, PACK).last == "VALID AGAINST THE PACK'S OWN KEYS"


def test_one_flipped_bit_anywhere_in_it_is_refused_with_the_file_s_name(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    rest = {other: data for other, data in FILES.items() if other != name}
    found = checked(tmp_path, zipped(rest))
    assert found.code == 1
    assert name in found.text


def changed(name: str, change: Callable[[Lines], object]) -> bytes:
    """The pack with other lines in a file, sealed anew by whoever packs."""
    lines = FILES[name].splitlines(keepends=True)
    change(lines)
    return resealed(FILES | {name: b"".join(lines)})


def told(place: int, **other: Any) -> Callable[[Lines], object]:
    """Change what a line of `records.ndjson` says."""

    def change(lines: Lines) -> None:
        lines[place] = canonical_json.dumps(json.loads(lines[place]) | other) + b"\n"

    return change


ABSENT = {"id": None, "key_id": None, "signature": None, "leaf_index": None}
CHANGES: dict[str, tuple[str, Callable[[Lines], object], str, str]] = {
    "a digest is left out": (
        "session-digests.txt",
        lambda lines: lines.pop(2),
        "session-digests.txt",
        "there are 6, not 7",
    ),
    "a digest was added": (
        "session-digests.txt",
        lambda lines: lines.append(b"00" * 32 + b"\n"),
        "session-digests.txt",
        "there are 8, not 7",
    ),
    "two digests changed places": (
        "session-digests.txt",
        lambda lines: lines.insert(0, lines.pop()),
        "session-digests.txt",
        "not the digests whose root",
    ),
    "a digest is in capitals": (
        "session-digests.txt",
        lambda lines: lines.append(lines.pop().upper()),
        "session-digests.txt",
        "not what it must be",
    ),
    "the last line is cut off": (
        "records.ndjson",
        lambda lines: lines.append(lines.pop()[:-1]),
        "records.ndjson",
        "cut off",
    ),
    "a record's line is left out": (
        "records.ndjson",
        lambda lines: lines.pop(),
        "records.ndjson",
        "it ends after 6 of 7",
    ),
    "a record is missing": (
        "records.ndjson",
        told(3, status="missing", **ABSENT),
        "records.ndjson",
        "sealed, and not here: 4 of 7 (",
    ),
    "a record has no leaf": (
        "records.ndjson",
        told(3, leaf_index=None),
        "records.ndjson",
        "without a leaf in the log: 4 of 7 (rec_",
    ),
    "a record was not sealed": (
        "records.ndjson",
        lambda lines: lines.append(
            canonical_json.dumps(json.loads(lines[0]) | {"status": "unsealed"}) + b"\n"
        ),
        "records.ndjson",
        "in the session, but not sealed with it: (rec_",
    ),
    "a present record stands behind the sealed ones": (
        "records.ndjson",
        lambda lines: lines.append(lines[0]),
        "records.ndjson",
        "more than was sealed",
    ),
    "a status is none": (
        "records.ndjson",
        told(3, status="fine"),
        "records.ndjson",
        "what became of a record",
    ),
    "a leaf's place is none": (
        "records.ndjson",
        told(3, leaf_index=-1),
        "records.ndjson",
        "leaf_index",
    ),
    "a present record has no id": (
        "records.ndjson",
        told(3, id=None),
        "records.ndjson",
        "what became of a record",
    ),
    "another digest": (
        "records.ndjson",
        told(3, sha256="00" * 32),
        "records.ndjson",
        "is not what was sealed there",
    ),
    "an expired bundle is said to be present": (
        "records.ndjson",
        told(1, status="present"),
        "bundles.ndjson",
        "where that of 2 of 7 (rec_",
    ),
    "a present bundle is said to have expired": (
        "records.ndjson",
        told(0, status="expired"),
        "bundles.ndjson",
        "there are other bytes",
    ),
    "another signature": (
        "records.ndjson",
        told(3, signature="A" * 86 + "=="),
        "bundles.ndjson",
        "4 of 7 (rec_00000000000000000000000000000004): its signature does not hold",
    ),
    "no signature at all": (
        "records.ndjson",
        told(3, signature="?"),
        "bundles.ndjson",
        "4 of 7 (rec_00000000000000000000000000000004): this is not base64",
    ),
    "another key": (
        "records.ndjson",
        told(3, key_id="0" * 16),
        "bundles.ndjson",
        "by a key that is not here",
    ),
    "another id": (
        "records.ndjson",
        told(3, id=packs.record(9)["id"]),
        "bundles.ndjson",
        "it is of another session",
    ),
    "a bundle is left out": (
        "bundles.ndjson",
        lambda lines: lines.pop(),
        "bundles.ndjson",
        "it ends before the bundle of 7 of 7",
    ),
    "a bundle was added": (
        "bundles.ndjson",
        lambda lines: lines.append(packs.bundle_of(9) + b"\n"),
        "bundles.ndjson",
        "more bundles than are told of",
    ),
    "a bundle was changed": (
        "bundles.ndjson",
        lambda lines: lines.append(lines.pop().replace(b"12.5", b"12.6")),
        "bundles.ndjson",
        "where that of 7 of 7 (rec_",
    ),
    "a counted finding is gone": (
        "findings.ndjson",
        lambda lines: lines.clear(),
        "findings.ndjson",
        "of those that the statement counts: 1 high",
    ),
    "a finding stands there twice": (
        "findings.ndjson",
        lambda lines: lines.append(lines[0]),
        "findings.ndjson",
        "not in order",
    ),
    "a finding is another session's": (
        "findings.ndjson",
        lambda lines: lines.append(lines.pop().replace(b"ses_0", b"ses_1")),
        "findings.ndjson",
        "another session's",
    ),
    "a key is another": (
        "keys.json",
        lambda lines: lines.__setitem__(
            slice(None), [canonical_json.dumps({"keys": [packs.NEXT_KEY.public.jwk]})]
        ),
        "bundles.ndjson",
        "by a key that is not here",
    ),
}


@pytest.mark.parametrize("name", ["session-digests.txt", "records.ndjson", "findings.ndjson"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end_is_refused_in_good_time(tmp_path: Path, name: str, end: bytes) -> None:
    nonsense = b"x" * (17 << 20) + end
    found = checked(tmp_path, resealed(FILES | {name: nonsense}))
    assert name in found.of("INVALID"), found.text


@pytest.mark.parametrize("change", CHANGES)
def test_what_whoever_packs_changes_is_named(tmp_path: Path, change: str) -> None:
    name, how, check, why = CHANGES[change]
    found = checked(tmp_path, changed(name, how))
    assert found.code == 1, found.text
    line = next(each for each in found.text.splitlines() if f" {check}: " in each[:60])
    assert line.startswith(("INVALID", "INCOMPLETE")), found.text
    assert why in line
    assert check in found.last


def test_a_key_that_nobody_gave_is_refused(tmp_path: Path, roots: list[object]) -> None:
    keys = canonical_json.dumps({"keys": [packs.KEY.public.jwk, packs.NEXT_KEY.public.jwk]})
    found = checked(tmp_path, resealed(FILES | {"keys.json": keys}), *roots)
    assert found.of("INVALID") == ["keys.json"]


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ({"retired_at": "2026-01-31T12:00:00.123456Z"}, "VALID"),
        ({"retired_at": "2026-01-31T12:00:00.123455Z"}, "INVALID"),
        ({"revoked_at": "2026-03-01T00:00:00.000000Z"}, "INVALID"),
    ],
)
def test_bundles_are_held_to_the_end_of_their_key(
    tmp_path: Path, end: dict[str, str], verdict: str
) -> None:
    (tmp_path / "keys.json").write_bytes(
        canonical_json.dumps({"keys": [packs.KEY.public.jwk | end]})
    )
    found = checked(tmp_path, PACK, "--key", tmp_path / "keys.json")
    assert found.verdicts["time of the bundles"] == verdict, found.text


def test_a_session_without_records_is_verified(tmp_path: Path, roots: list[object]) -> None:
    data = b"".join(pack.write_session(packs.session_evidence(0, ())))
    found = checked(tmp_path, data, *roots, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text
