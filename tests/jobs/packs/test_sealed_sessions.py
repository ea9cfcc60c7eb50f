"""The pack of a record of a sealed session tells its place there; it is made anew for that."""

import json
import time
from pathlib import Path
from typing import Any

from app.core.records import statements
from tests.support.callers.making import make_record, make_session
from tests.support.evidence.packing import Packer, files_in
from tests.support.evidence.verifying import answer


def seal(packer: Packer, session: dict[str, Any]) -> None:
    """Complete a session, and let a worker seal it."""
    path = f"/v1/sessions/{session['id']}/complete"
    assert packer.api().post(path, {"outcome": "succeeded"}).status_code == 200
    until = time.monotonic() + 60
    statements.seal_due(packer.runtime.database, packer.runtime.settings.master_keys, until)


def test_a_pack_of_before_is_made_anew_when_its_session_is_sealed(
    packer: Packer, tmp_path: Path
) -> None:
    session = make_session(packer.api())
    first, second = (make_record(packer.api(), session["id"]) for _ in range(2))
    packer.log.run()
    before = files_in(packer.built(second))
    assert "session-statement.json" not in before
    seal(packer, session)
    outdated = packer.ask(second)
    assert outdated.headers["x-service-evidence"] == "outdated"
    packer.work()
    now = packer.ask(second)
    assert now.headers["x-service-evidence"] == "current"
    files = files_in(now.data)
    said = packer.api().get(f"/v1/sessions/{session['id']}/statement")
    assert files["session-statement.json"] == said.data
    assert json.loads(files["session-proof.json"])["index"] == 1
    (tmp_path / "pack.zip").write_bytes(now.data)
    found = answer(tmp_path / "pack.zip")
    assert found.code == 0, found.text
    assert "session-proof.json: 2 of 2 of a sealed session" in found.text
    assert "session-statement.json" in files_in(packer.built(first))
