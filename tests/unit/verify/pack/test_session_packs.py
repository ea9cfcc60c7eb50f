"""The pack of a session: each changed bit, line and file of it is found, and named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack
from app.lib import canonical_json
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import checked, files_of, resealed, zipped

PACK = b"".join(pack.write_session(packs.session_evidence()))
FILES = files_of(PACK)
Lines = list[bytes]


def test_a_session_is_verified_whole(tmp_path: Path, roots: list[object]) -> None:
    found = checked(tmp_path, PACK, *roots, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert "records.ndjson: 6 of 7 are here; 1 have expired" in found.text
    assert "bundles.ndjson: 6 of 7 are here, each signed" in found.text
    assert checked(tmp_path, PACK).last == "VALID AGAINST THE PACK'S OWN KEYS"


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
DIGESTS, RECORDS, BUNDLES = "session-digests.txt", "records.ndjson", "bundles.ndjson"
FINDINGS, KEYS = "findings.ndjson", "keys.json"
FOURTH = "4 of 7 (rec_00000000000000000000000000000004)"
NEXT_KEYS = canonical_json.dumps({"keys": [packs.NEXT_KEY.public.jwk]})
UNSEALED = canonical_json.dumps(json.loads(FILES[RECORDS].splitlines()[0]) | {"status": "unsealed"})
# In which file lines are changed, how, of which file that is said, and what.
CHANGES: list[tuple[str, Callable[[Lines], object], str, str]] = [
    (DIGESTS, lambda lines: lines.pop(2), DIGESTS, "there are 6, not 7"),
    (DIGESTS, lambda lines: lines.append(b"00" * 32 + b"\n"), DIGESTS, "there are 8, not 7"),
    (DIGESTS, lambda lines: lines.insert(0, lines.pop()), DIGESTS, "not the digests whose root"),
    (DIGESTS, lambda lines: lines.append(lines.pop().upper()), DIGESTS, "not what it must be"),
    (RECORDS, lambda lines: lines.append(lines.pop()[:-1]), RECORDS, "cut off"),
    (RECORDS, lambda lines: lines.pop(), RECORDS, "it ends after 6 of 7"),
    (RECORDS, told(3, status="missing", **ABSENT), RECORDS, "sealed, and not here: 4 of 7 ("),
    (RECORDS, told(3, leaf_index=None), RECORDS, "without a leaf in the log: 4 of 7 (rec_"),
    (
        RECORDS,
        lambda lines: lines.append(UNSEALED + b"\n"),
        RECORDS,
        "but not sealed with it: (rec_",
    ),
    (RECORDS, lambda lines: lines.append(lines[0]), RECORDS, "more than was sealed"),
    (RECORDS, told(3, status="fine"), RECORDS, "what became of a record"),
    (RECORDS, told(3, leaf_index=-1), RECORDS, "leaf_index"),
    (RECORDS, told(3, id=None), RECORDS, "what became of a record"),
    (RECORDS, told(3, sha256="00" * 32), RECORDS, "is not what was sealed there"),
    (RECORDS, told(1, status="present"), BUNDLES, "where that of 2 of 7 (rec_"),
    (RECORDS, told(0, status="expired"), BUNDLES, "there are other bytes"),
    (
        RECORDS,
        told(3, signature="A" * 86 + "=="),
        BUNDLES,
        f"{FOURTH}: its signature does not hold",
    ),
    (RECORDS, told(3, signature="?"), BUNDLES, f"{FOURTH}: this is not base64"),
    (RECORDS, told(3, key_id="0" * 16), BUNDLES, "by a key that is not here"),
    (RECORDS, told(3, id=packs.record(9)["id"]), BUNDLES, "it is of another session"),
    (BUNDLES, lambda lines: lines.pop(), BUNDLES, "it ends before the bundle of 7 of 7"),
    (BUNDLES, lambda lines: lines.append(packs.bundle_of(9) + b"\n"), BUNDLES, "more bundles than"),
    (
        BUNDLES,
        lambda lines: lines.append(lines.pop().replace(b"12.5", b"12.6")),
        BUNDLES,
        "where that of 7 of 7 (rec_",
    ),
    (FINDINGS, lambda lines: lines.clear(), FINDINGS, "of those that the statement counts: 1 high"),
    (FINDINGS, lambda lines: lines.append(lines[0]), FINDINGS, "not in order"),
    (
        FINDINGS,
        lambda lines: lines.append(lines.pop().replace(b"ses_0", b"ses_1")),
        FINDINGS,
        "another session's",
    ),
    (KEYS, lambda lines: lines.__setitem__(0, NEXT_KEYS), BUNDLES, "by a key that is not here"),
]


@pytest.mark.parametrize("name", [DIGESTS, RECORDS, FINDINGS])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end_is_refused_in_good_time(tmp_path: Path, name: str, end: bytes) -> None:
    nonsense = b"x" * (17 << 20) + end
    found = checked(tmp_path, resealed(FILES | {name: nonsense}))
    assert name in found.of("INVALID"), found.text


@pytest.mark.parametrize(("name", "how", "check", "why"), CHANGES)
def test_what_whoever_packs_changes_is_named(
    tmp_path: Path, name: str, how: Callable[[Lines], object], check: str, why: str
) -> None:
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
