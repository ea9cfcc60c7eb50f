"""Workers that die with a job, and workers that were told to end: real processes, real signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from app.core.jobs import job_queue, job_rows, leases
from app.database import Database
from app.models import Job
from app.queue import Bell
from tests.support.callers.api import FreshTenant
from tests.support.faults import OwnValkey, until

# The same that `hanging_worker` calls it, which cannot be imported: it becomes a worker.
KIND = "hangs"


@pytest.fixture
def worker(
    own_valkey: OwnValkey, environ: dict[str, str], tmp_path: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the worker as the Procfile does, but that it waits for its threads for no time."""
    command = (
        "-m dramatiq tests.jobs.hanging_worker --processes 1 --threads 4 --skip-logging "
        "--worker-shutdown-timeout 1 --queues deliver jobs tick"
    )
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            env=os.environ | environ | {"REDIS_URL": own_valkey.url},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(("told", "counted"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1)])
def test_a_death_is_counted_and_a_stop_is_not(
    database: Database,
    tenant: FreshTenant,
    own_valkey: OwnValkey,
    worker: "subprocess.Popen[bytes]",
    told: signal.Signals,
    counted: int,
) -> None:
    with database.transaction(tenant.id) as session:
        job = job_queue.enqueue(session, tenant.id, kind=KIND, args={})
    bell = Bell(own_valkey.url)
    bell.ring("run_job", (tenant.id, job.id))
    bell.close()
    until(lambda: own_valkey.client.llen("hanging") == 1, 30)
    os.killpg(worker.pid, told)
    worker.wait(30)
    left = _read(database, job)
    assert left.locked_until is not None, "its worker is gone without a word of what came of it"
    with database.transaction(tenant.id) as session:
        session.execute(
            text("UPDATE jobs SET locked_until = clock_timestamp() WHERE id = :id"), {"id": job.id}
        )
    with database.across_tenants() as session:
        assert leases.claim(session, tenant.id, job.id) is not None
    assert _read(database, job).claims_lost == counted


def _read(database: Database, job: Job) -> Job:
    with database.transaction(job.tenant_id) as session:
        return job_rows.get(session, job.tenant_id, job.id)
