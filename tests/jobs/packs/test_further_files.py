"""Findings in packs: all of a record's, as they stood, and a new pack after a new one."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.core.packs import subjects
from tests.support.callers.making import make_finding
from tests.support.database.databases import execute
from tests.support.evidence.packing import Packer, files_in, record_id, stored
from tests.support.evidence.verifying import answer


def findings_in(pack: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files_in(pack)["findings.json"])
    return found


def test_a_pack_holds_the_record_s_findings_as_their_get_answers(
    packer: Packer, tmp_path: Path
) -> None:
    record = packer.record()
    assert findings_in(packer.built(record)) == {
        "schema": "records/findings/v1",
        "record_id": record["id"],
        "total": 0,
        "data": [],
    }
    other = packer.record()
    api, session_id = packer.api(), record["session_id"]
    odd = {"n": [1e21, 5e-324, 9007199254740991], "\U0001f3e6": "\ue000 \u2028"}
    made = [
        make_finding(api, session_id, record_id=record["id"], data=data, rule=f"rule {number}")
        for number, data in enumerate([{"rule": {"id": "rul_1", "version": 3}}, [], odd])
    ]
    make_finding(api, session_id)
    make_finding(api, other["session_id"], record_id=other["id"])
    assert packer.ask(record).headers["x-service-evidence"] == "outdated"
    packer.work()
    built = packer.built(record)
    got = [api.get(f"/v1/findings/{each['id']}").json for each in made]
    assert findings_in(built)["data"] == got
    (tmp_path / "pack.zip").write_bytes(built)
    found = answer(tmp_path / "pack.zip")
    assert found.code == 0, found.text
    assert "findings.json: 3 when the pack was made" in found.text


def test_a_pack_is_made_anew_after_a_finding_and_else_kept(
    packer: Packer, admin_engine: Engine
) -> None:
    record = packer.record()
    first = packer.built(record)
    make_finding(packer.api(), record["session_id"])
    assert packer.ask(record).headers["x-service-evidence"] == "current"
    make_finding(packer.api(), record["session_id"], record_id=record["id"])
    answer = packer.ask(record)
    assert (answer.data, answer.headers["x-service-evidence"]) == (first, "outdated")
    packer.work()
    second = packer.built(record)
    assert (findings_in(first)["total"], findings_in(second)["total"]) == (0, 1)
    assert stored(admin_engine, record) == [(True, 1), (False, 1)]
    execute(admin_engine, "DELETE FROM evidence_packs WHERE record_id = :id", id=record_id(record))
    assert packer.built(record) == second


def test_findings_without_end_are_cut_and_counted(
    packer: Packer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "MOST_FINDINGS", 1200)
    record = packer.record()
    for number in range(4):
        make_finding(packer.api(), record["session_id"], record_id=record["id"], data="x" * number)
    built = packer.built(record)
    assert (findings_in(built)["total"], len(findings_in(built)["data"])) == (4, 2)
    (tmp_path / "pack.zip").write_bytes(built)
    assert answer(tmp_path / "pack.zip").verdicts["findings.json"] == "NOT CHECKED"
