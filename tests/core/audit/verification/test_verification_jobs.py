"""A verification that takes longer than a request waits is a job, a few of them at once."""

from sqlalchemy import Engine

from app.core import tenants
from app.core.jobs import job_rows
from app.core.verification import jobs as verification
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.database.databases import empty
from tests.support.evidence.chains import Place, done
from tests.support.secrets import MASTER_KEYS


def test_a_job_that_finds_a_break_ends_dead_and_names_the_place(place: Place) -> None:
    place.owner.cut(8)
    with place.world.database.transaction(place.tenant_id) as session:
        job = verification.enqueue(session, place.tenant_id, {"seq": 12, "hash": "0" * 64})
    ended = done(place, job)
    assert ended.status == "dead"
    assert (ended.error or "").startswith(
        "audit-chain-broken: The audit chain is broken at entry 9"
    )
    assert len(place.events()) == 1


def test_a_worker_runs_the_job_that_the_clock_asks_for(
    log_runtime: Runtime, log_owner: Engine
) -> None:
    # The tests before in that database may have left it damaged.
    empty(log_owner)
    tenant_id, _ = tenants.create(log_runtime.database, MASTER_KEYS, "verified by a worker")
    with log_runtime.database.across_tenants() as session:
        everyone = verification.enqueue_daily(session)
        one = verification.enqueue(session, tenant_id, {})
    for job in (one, everyone):
        work_on(log_runtime, job.tenant_id, job.id)
        with log_runtime.database.transaction(job.tenant_id) as session:
            ended = job_rows.get(session, job.tenant_id, job.id)
        assert (ended.kind, ended.error) == ("verify_audit", None)
        assert ended.progress is not None
