"""The commands of a sealed session: its statement, and the pack of all its records."""

import json
import time
from pathlib import Path
from typing import Any

from app.core.jobs import control as job_control
from app.core.log.sequencer import Sequencer
from app.core.records import statements
from app.database import Database
from app.settings import Settings
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.client.conftest import Command
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_record


def test_a_sealed_session_is_saved_and_verified(
    records: Command,
    api: ApiOf,
    session: dict[str, Any],
    database: Database,
    settings: Settings,
    runtime: Runtime,
    tenant: FreshTenant,
    log: Sequencer,
    tmp_path: Path,
) -> None:
    make_record(api(), session["id"])
    opened = records("session", "statement", session["id"])
    assert (opened.code, "open" in opened.err) == (5, True)
    assert records("session", "complete", session["id"]).code == 0
    statements.seal_due(database, settings.master_keys, time.monotonic() + 60)
    log.run()
    file = tmp_path / "statement.json"
    assert records("session", "statement", session["id"], "-o", str(file)).code == 0
    assert json.loads(file.read_bytes())["records"] == 1
    assert len((tmp_path / "statement.json.sig").read_bytes()) == 64
    asked = api().get(f"/v1/sessions/{session['id']}/evidence.zip", headers={"Prefer": "wait=0"})
    assert asked.status_code == 202
    with database.transaction(tenant.id) as found:
        (job,) = job_control.find(found, tenant.id, before=None, limit=1, kind="session_pack")
        work_on(runtime, tenant.id, job.id)
    pack = str(tmp_path / "pack.zip")
    ran = records("session", "evidence", session["id"], "-o", pack, "--verify")
    assert ran.code == 0, ran.err
    assert "bundles.ndjson: 1 of 1 are here" in ran.out
