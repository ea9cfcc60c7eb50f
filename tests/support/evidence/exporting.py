"""Makes period exports as a worker would, a turn at a time, and takes their files apart."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from app.clock import rfc3339
from app.core.exports import building
from app.core.exports.building import Builder
from app.core.log.sequencer import Sequencer
from app.core.records import statements
from app.database import database_now
from app.models import Job
from jobs.durable import run_job
from jobs.process.runtime import Runtime
from tests.support.callers.api import Answer, ApiOf, FreshTenant
from tests.support.callers.making import make_record, make_session, uuid_of
from tests.support.database.databases import execute
from tests.support.evidence import verifying
from tests.support.evidence.packing import Served

PATH = "/v1/exports"
LINES = 4
"""Leaves that a step reads here, so that every export takes several."""


@dataclass
class Exporter(Served):
    """Makes records of sessions, and exports of them."""

    owner: Engine

    def now(self) -> datetime:
        """Return the database's time."""
        with self.runtime.database.transaction(self.tenant.id) as session:
            return database_now(session)

    def records(self, count: int, session_id: str | None = None, **fields: Any) -> list[Any]:
        """Make records of one session, in the published log."""
        of = session_id or make_session(self.api())["id"]
        made = [make_record(self.api(), of, **fields) for _ in range(count)]
        self.log.run()
        return made

    def seal(self, session_id: str) -> None:
        """Complete a session, and have its statement in the published log."""
        done = self.api().post(f"/v1/sessions/{session_id}/complete", {"outcome": "succeeded"})
        assert done.status_code == 200, done.json
        keys = self.runtime.settings.master_keys
        assert not statements.seal_due(self.runtime.database, keys, time.monotonic() + 60)
        self.log.run()

    def order(self, since: datetime, until: datetime | None = None, **fields: Any) -> Answer:
        """Order an export up to now, or up to a moment."""
        body = {"since": rfc3339(since), "until": rfc3339(until or self.now()), **fields}
        return self.api().post(PATH, body)

    def read(self, export: dict[str, Any]) -> dict[str, Any]:
        """Return an export as it is now."""
        answer = self.api().get(f"{PATH}/{export['id']}")
        assert answer.status_code == 200, answer.json
        found: dict[str, Any] = answer.json
        return found

    def work(self, export: dict[str, Any], steps: int = 100) -> dict[str, Any]:
        """Let the log and a worker go on until the export is made, or for so many steps."""
        for _ in range(steps):
            found = self.read(export)
            if found["state"] != "making":
                break
            self.step(export)
        return self.read(export)

    def step(self, export: dict[str, Any]) -> None:
        """Run one step of an export's job, the heads that it has anchored, and the log."""
        due = "UPDATE jobs SET run_at = clock_timestamp() WHERE kind = ANY (:kinds)"
        execute(self.owner, due, kinds=["period_export", "anchor_audit"])
        run_job._one_step(self.runtime, self.tenant.id, job_of(self.read(export)))
        with self.runtime.database.across_tenants() as session:
            anchoring = session.query(Job).filter(Job.kind == "anchor_audit").all()
        for job in anchoring:
            run_job.work_on(self.runtime, job.tenant_id, job.id)
        self.log.run()

    def made(self, since: datetime, until: datetime | None = None, **fields: Any) -> dict[str, Any]:
        """Order an export and have it made."""
        ordered = self.order(since, until, **fields)
        assert ordered.status_code == 202, ordered.json
        found = self.work(ordered.json)
        assert found["state"] == "ready", found
        return found

    def file(self, export: dict[str, Any]) -> bytes:
        """Return an export's file."""
        answer = self.api().get(f"{PATH}/{export['id']}/export.ndjson")
        assert answer.status_code == 200, answer.json
        return bytes(answer.data)


def job_of(export: dict[str, Any]) -> UUID:
    """Return the id of an export's job as the database has it."""
    return uuid_of(export["job_id"])


def lines_of(file: bytes) -> list[dict[str, Any]]:
    """Return the lines of a file."""
    return [json.loads(line) for line in file.splitlines()]


def verified(folder: Path, file: bytes, *arguments: object) -> verifying.Answer:
    """Return what verify.py says of a file."""
    path = folder / "export.ndjson"
    path.write_bytes(file)
    return verifying.answer("export", path, *arguments)


def joined(lines: Sequence[bytes]) -> bytes:
    """Return a file of these lines."""
    return b"".join(line + b"\n" for line in lines)


@pytest.fixture
def exporter(
    api: ApiOf,
    tenant: FreshTenant,
    runtime: Runtime,
    log: Sequencer,
    admin_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Exporter]:
    """Return an exporter of the test's tenant, whose steps are short and wait for no clock."""
    monkeypatch.setitem(
        run_job.KINDS,
        building.KIND,
        lambda here: Builder(here.database, here.settings, grace=timedelta(0), a_step=LINES).step,
    )
    yield Exporter(api, tenant, runtime, log, admin_engine)
    execute(admin_engine, "DELETE FROM checkpoint_timestamps")
    execute(admin_engine, "DELETE FROM checkpoint_cosignatures")
