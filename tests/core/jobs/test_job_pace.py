"""A job that waits between its steps keeps its pace, although it is rung only each full second."""

from datetime import timedelta

from sqlalchemy import text

from app.core.jobs import job_queue, job_rows, leases, steps
from app.core.jobs.steps import Step
from app.database import Database
from app.models import Job
from tests.support.callers.api import FreshTenant

A_SECOND = timedelta(seconds=1)


def test_a_step_s_wait_counts_from_when_the_step_was_due(
    database: Database, tenant: FreshTenant
) -> None:
    job = _due_since(database, tenant, "0.5 s")
    after = _step(database, job, wait=A_SECOND)
    assert after.run_at - job.run_at == A_SECOND


def test_steps_missed_for_long_are_not_made_up(database: Database, tenant: FreshTenant) -> None:
    job = _due_since(database, tenant, "1 hour")
    _step(database, job, wait=2 * A_SECOND)
    with database.transaction(tenant.id) as session:
        assert leases.claim(session, tenant.id, job.id) is None


def _due_since(database: Database, tenant: FreshTenant, ago: str) -> Job:
    with database.transaction(tenant.id) as session:
        job = job_queue.enqueue(session, tenant.id, kind="test", args={})
        session.execute(
            text("UPDATE jobs SET run_at = clock_timestamp() - CAST(:ago AS interval)"),
            {"ago": ago},
        )
        session.refresh(job)
        return job


def _step(database: Database, job: Job, *, wait: timedelta) -> Job:
    with database.transaction(job.tenant_id) as session:
        mine = leases.claim(session, job.tenant_id, job.id)
        assert mine is not None
        assert steps.advance(session, mine, Step("on", {}, wait))
    with database.transaction(job.tenant_id) as session:
        return job_rows.get(session, job.tenant_id, job.id)
