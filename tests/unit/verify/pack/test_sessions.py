"""A record's place in its sealed session, as its pack tells it."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.evidence import pack
from app.lib import canonical_json
from tests.support.evidence.verifying import Answer
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import EVIDENCE, PACK, checked, files_of, resealed


def with_session(folder: Path, files: dict[str, bytes], *arguments: object) -> Answer:
    return checked(folder, resealed(files_of(PACK) | files), *arguments)


def test_a_record_is_the_third_of_seven_of_its_session(tmp_path: Path, roots: list[object]) -> None:
    found = checked(tmp_path, PACK, *roots, "--strict")
    assert (found.code, found.last) == (0, "VALID"), found.text
    assert "VALID        session-proof.json: 3 of 7 of a sealed session" in found.text


@pytest.mark.parametrize(
    "other",
    [
        {"session": {"id": "ses_" + "9" * 32}},
        {"session": {"principal": "eve@example.com"}},
        {"session": {"agent": {"id": "agt_" + "9" * 32, "name": "x"}}},
        {"session": {"completed_at": "2026-01-31T10:00:00.000000Z"}},
        {"session": {"completed_at": "later"}},
        {"session": {"extra": 1}},
        {"records": 0},
        {"records": True},
        {"root": "00"},
        {"first_at": "2026-01-31T12:00:02.000000Z"},
        {"findings": {"high": -1}},
        {"key_id": packs.NEXT_KEY.public.id},
        {"schema": "records/session/v2"},
        {"more": None},
    ],
)
def test_a_statement_that_does_not_fit_is_refused_though_it_is_signed(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    files = packs.session_files(EVIDENCE.bundle)
    said = json.loads(files["session-statement.json"])
    session = said["session"] | other.get("session", {})
    raw = canonical_json.dumps(said | other | {"session": session})
    files |= {"session-statement.json": raw, "session-statement.sig": packs.KEY.sign(raw)}
    found = with_session(tmp_path, files)
    assert (found.code, found.of("INVALID")) == (1, ["session-statement.json"]), found.text
    assert "session-proof.json" in found.of("NOT CHECKED"), "nothing is held to what was refused"


@pytest.mark.parametrize(
    "change",
    [
        {"index": 3},
        {"index": 7},
        {"index": -1},
        {"size": 8},
        {"path": []},
        {"path": ["00" * 32] * 3},
        {"path": ["00"]},
        {"path": "00"},
        {"more": 1},
    ],
)
def test_another_place_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    files = packs.session_files(EVIDENCE.bundle)
    said = json.loads(files["session-proof.json"]) | change
    files["session-proof.json"] = canonical_json.dumps(said)
    found = with_session(tmp_path, files)
    assert (found.code, found.of("INVALID")) == (1, ["session-proof.json"]), found.text


def test_a_record_outside_the_times_of_its_session_is_refused(tmp_path: Path) -> None:
    later: dict[str, Any] = {
        "first_at": "2026-01-31T12:00:01.000000Z",
        "last_at": "2026-01-31T12:00:01.000000Z",
    }
    found = with_session(tmp_path, packs.session_files(EVIDENCE.bundle, **later))
    assert (found.code, found.of("INVALID")) == (1, ["session-proof.json"]), found.text


def test_a_statement_by_another_key_brings_its_key(tmp_path: Path, roots: list[object]) -> None:
    """The key was rotated between the record and the end of its session."""
    key = {"session-key.pem": packs.NEXT_KEY.public.pem}
    files = packs.session_files(EVIDENCE.bundle, packs.NEXT_KEY) | key
    data = b"".join(pack.write(packs.evidence(files=files, witnesses=[9, 10])))
    found = checked(tmp_path, data)
    assert (found.code, found.verdicts["session-proof.json"]) == (0, "VALID"), found.text
    (tmp_path / "next.pem").write_bytes(packs.NEXT_KEY.public.pem)
    strict = checked(tmp_path, data, *roots, "--key", tmp_path / "next.pem", "--strict")
    assert (strict.code, strict.last) == (0, "VALID"), strict.text
    assert checked(tmp_path, data, *roots).of("INVALID") == ["session-key.pem"]
    wrong = files | {"session-key.pem": packs.KEY.public.pem}
    assert set(with_session(tmp_path, wrong).of("INVALID")) == {
        "session-statement.json",
        "session-statement.sig",
    }


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ({"retired_at": "2026-01-31T12:00:00.123456Z"}, "VALID"),
        ({"retired_at": "2026-01-31T12:00:00.123455Z"}, "INVALID"),
        ({"revoked_at": "2026-03-01T00:00:00.000000Z"}, "NOT CHECKED"),
    ],
)
def test_a_statement_is_held_to_the_end_of_its_key(
    tmp_path: Path, end: dict[str, str], verdict: str
) -> None:
    files = packs.session_files(EVIDENCE.bundle, packs.NEXT_KEY)
    files["session-key.pem"] = packs.NEXT_KEY.public.pem
    data = b"".join(pack.write(packs.evidence(files=files)))
    keys = [packs.KEY.public.jwk, packs.NEXT_KEY.public.jwk | end]
    (tmp_path / "keys.json").write_bytes(canonical_json.dumps({"keys": keys}))
    found = checked(tmp_path, data, "--key", tmp_path / "keys.json")
    assert found.verdicts["time of session-statement.sig"] == verdict, found.text


def test_a_pack_of_before_the_session_ended_has_nothing_of_it(
    tmp_path: Path, roots: list[object]
) -> None:
    gone = sorted(pack.FURTHER["session"])
    files = {name: data for name, data in files_of(PACK).items() if name not in gone}
    assert checked(tmp_path, resealed(files), *roots).last == "VALID"
    half = {name: data for name, data in files_of(PACK).items() if name not in gone[:1]}
    assert checked(tmp_path, resealed(half)).code == 1
