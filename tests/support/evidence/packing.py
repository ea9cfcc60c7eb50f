"""Builds evidence packs as a worker would, a turn at a time, and takes them apart."""

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from app.core.jobs import control as job_control
from app.core.log.sequencer import Sequencer
from app.models import Job
from app.settings import Settings
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.callers.api import Answer, ApiOf, FreshTenant, serving
from tests.support.callers.making import make_record, make_session, uuid_of
from tests.support.database.databases import execute
from tests.support.workers.worlds import opened_runtime

AT_ONCE = {"Prefer": "wait=0"}


@dataclass
class Served:
    """One tenant, the log, and a worker that runs when it is told to."""

    api: ApiOf
    tenant: FreshTenant
    runtime: Runtime
    log: Sequencer


_Served = TypeVar("_Served", bound=Served)


@contextmanager
def set_up_as(served: _Served, settings: Settings, **changed: Any) -> Iterator[_Served]:
    """Serve the same tenant with some other settings."""
    other, own_key = replace(settings, **changed), served.tenant.root_key
    with serving(other) as api, opened_runtime(other) as runtime:
        yield replace(served, api=lambda key=own_key: api(key), runtime=runtime)


class Packer(Served):
    """Makes records, and packs of them."""

    def record(self, *, published: bool = True, **fields: Any) -> dict[str, Any]:
        """Make a record, and by default let the log publish it."""
        made = make_record(self.api(), make_session(self.api())["id"], **fields)
        if published:
            self.log.run()
        return made

    def ask(self, record: dict[str, Any], key: str | None = "", **headers: str) -> Answer:
        """Ask for a pack, by the root key unless another or None is given; wait for nothing."""
        caller = self.api() if key == "" else self.api(key)
        return caller.get(path_of(record), headers=AT_ONCE | headers)

    def jobs(self, kind: str = "evidence_pack") -> list[Job]:
        """Return the tenant's jobs that build packs, oldest first."""
        with self.runtime.database.transaction(self.tenant.id) as session:
            found = job_control.find(session, self.tenant.id, before=None, limit=200, kind=kind)
        return found[::-1]

    def work(self, kind: str = "evidence_pack") -> list[Job]:
        """Let a worker take a turn at each open job that is due; return all as they are then."""
        for job in self.jobs(kind):
            if job.finished_at is None:
                work_on(self.runtime, self.tenant.id, job.id)
        return self.jobs(kind)

    def built(self, record: dict[str, Any]) -> bytes:
        """Return a record's pack, as it is answered once it was built."""
        if self.ask(record).status_code == 202:
            self.work()
        answer = self.ask(record)
        assert answer.status_code == 200, answer.json
        return bytes(answer.data)


def parts_of(answer: Answer) -> Iterator[bytes]:
    """Return an answer's parts one after another, as they are made."""
    return cast(Iterator[bytes], iter(answer.response))


def path_of(record: dict[str, Any]) -> str:
    """Return where a record's pack is."""
    return f"/v1/records/{record['id']}/evidence.zip"


def files_in(pack: bytes) -> dict[str, bytes]:
    """Return a pack's files by name."""
    with zipfile.ZipFile(io.BytesIO(pack)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def stored(owner: Engine, record: dict[str, Any]) -> list[tuple[bool, int]]:
    """Return each stored build of a record's pack: whether superseded, and its parts."""
    query = """
    SELECT superseded_at IS NOT NULL,
           (SELECT count(*) FROM evidence_pack_parts WHERE pack_id = p.id)
      FROM evidence_packs AS p WHERE record_id = :id ORDER BY id
    """
    with owner.connect() as connection:
        rows = connection.execute(text(query), {"id": record_id(record)})
        return [(row[0], row[1]) for row in rows]


def record_id(record: dict[str, Any]) -> UUID:
    """Return a record's id as the database has it."""
    return uuid_of(record["id"])


@pytest.fixture
def packer(
    api: ApiOf,
    tenant: FreshTenant,
    runtime: Runtime,
    log: Sequencer,
    admin_engine: Engine,
) -> Iterator[Packer]:
    """Return a packer of the test's tenant; what vouches for its checkpoints goes with it."""
    yield Packer(api, tenant, runtime, log)
    execute(admin_engine, "DELETE FROM checkpoint_timestamps")
    execute(admin_engine, "DELETE FROM checkpoint_cosignatures")


def due_now(owner: Engine) -> None:
    execute(owner, "UPDATE jobs SET run_at = clock_timestamp() WHERE kind = 'evidence_pack'")


def progress(job: Job) -> Any:
    return json.loads(job.progress or "null")
