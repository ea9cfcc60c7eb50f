"""Durable jobs: claimed by one, worked on in steps, tried again, and in the end dead or done."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from app.core.jobs import control as job_control
from app.core.jobs import job_queue, job_rows, leases, steps
from app.core.jobs.steps import Step
from app.database import Database
from app.errors import NotResumable
from app.models import Job
from tests.support.callers.api import FreshTenant


def enqueue(database: Database, tenant: FreshTenant, dedupe_key: str | None = None) -> Job:
    with database.transaction(tenant.id) as session:
        return job_queue.enqueue(
            session, tenant.id, kind="bulk_replay", args={"n": 1}, dedupe_key=dedupe_key
        )


def claim(database: Database, job: Job) -> Job | None:
    with database.transaction(job.tenant_id) as session:
        return leases.claim(session, job.tenant_id, job.id)


def claimed(database: Database, job: Job) -> Job:
    """Claim a job that is due."""
    mine = claim(database, job)
    assert mine is not None
    return mine


def read(database: Database, job: Job) -> Job:
    with database.transaction(job.tenant_id) as session:
        return job_rows.get(session, job.tenant_id, job.id)


def test_a_job_is_claimed_by_one(database: Database, tenant: FreshTenant) -> None:
    job = enqueue(database, tenant)
    assert claim(database, job) is not None
    assert claim(database, job) is None


def test_a_lost_worker_s_job_is_due_again_when_its_lease_ends(
    database: Database, tenant: FreshTenant
) -> None:
    job = enqueue(database, tenant)
    first = claimed(database, job)
    _end_lease(database, job)
    second = claimed(database, job)
    with database.transaction(tenant.id) as session:
        assert not steps.advance(session, first, Step(None, {}))
        assert steps.advance(session, second, Step(None, {"done": 1}))
    assert read(database, job).status == "succeeded"


def test_a_step_leaves_a_cursor_and_frees_the_job(database: Database, tenant: FreshTenant) -> None:
    job = enqueue(database, tenant)
    mine = claimed(database, job)
    with database.transaction(tenant.id) as session:
        steps.advance(session, mine, Step("row 7", {"done": 7}))
    again = claimed(database, job)
    assert (again.cursor, again.progress) == ("row 7", '{"done":7}')


def test_a_job_that_waits_is_not_due(database: Database, tenant: FreshTenant) -> None:
    job = enqueue(database, tenant)
    mine = claimed(database, job)
    with database.transaction(tenant.id) as session:
        steps.advance(session, mine, Step("x", {}, wait=timedelta(hours=1)))
    assert claim(database, job) is None


def test_a_job_that_keeps_failing_is_dead_stays_and_can_be_retried(
    database: Database, tenant: FreshTenant
) -> None:
    job = enqueue(database, tenant)
    for _ in range(len(steps.RETRY_WAITS) + 1):
        _make_due(database, job)
        mine = claimed(database, job)
        with database.transaction(tenant.id) as session:
            steps.fail(session, mine, "the disk is full")
    dead = read(database, job)
    assert (dead.status, dead.error) == ("dead", "the disk is full")
    assert claim(database, job) is None
    with database.transaction(tenant.id) as session:
        assert job_control.retry(session, tenant.id, job.id).status == "queued"
    assert claim(database, job) is not None


def test_what_cannot_succeed_is_dead_at_once(database: Database, tenant: FreshTenant) -> None:
    job = enqueue(database, tenant)
    mine = claimed(database, job)
    with database.transaction(tenant.id) as session:
        steps.fail(session, mine, "no such webhook", for_good=True)
    assert read(database, job).status == "dead"


def test_a_cancelled_job_takes_no_step_and_goes_on_when_resumed(
    database: Database, tenant: FreshTenant
) -> None:
    job = enqueue(database, tenant)
    mine = claimed(database, job)
    with database.transaction(tenant.id) as session:
        job_control.cancel(session, tenant.id, job.id)
    with database.transaction(tenant.id) as session:
        assert not steps.advance(session, mine, Step(None, {}))
    assert claim(database, job) is None
    with database.transaction(tenant.id) as session:
        job_control.resume(session, tenant.id, job.id)
    assert claim(database, job) is not None


def test_the_same_job_is_enqueued_once_while_it_is_open(
    database: Database, tenant: FreshTenant
) -> None:
    first = enqueue(database, tenant, "k")
    assert enqueue(database, tenant, "k").id == first.id
    with database.transaction(tenant.id) as session:
        job_control.cancel(session, tenant.id, first.id)
    assert enqueue(database, tenant, "k").id != first.id


def _end_lease(database: Database, job: Job) -> None:
    with database.transaction(job.tenant_id) as session:
        session.execute(
            text(
                "UPDATE jobs SET locked_until = clock_timestamp() - interval '1 s' WHERE id = :id"
            ),
            {"id": job.id},
        )


def _make_due(database: Database, job: Job) -> None:
    with database.transaction(job.tenant_id) as session:
        session.execute(
            text("UPDATE jobs SET run_at = clock_timestamp() WHERE id = :id"), {"id": job.id}
        )


def test_only_a_replay_can_be_cancelled(database: Database, tenant: FreshTenant) -> None:
    with database.transaction(tenant.id) as session:
        job = job_queue.enqueue(session, tenant.id, kind="expire_bundles", args={})
    with (
        pytest.raises(NotResumable, match="runs to its end"),
        database.transaction(tenant.id) as session,
    ):
        job_control.cancel(session, tenant.id, job.id)
    with database.transaction(tenant.id) as session:
        assert job_rows.get(session, tenant.id, job.id).status == "queued"
