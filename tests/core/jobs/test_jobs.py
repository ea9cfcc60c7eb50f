"""Durable jobs: claims, steps, their pace, and stuck ones."""

from datetime import timedelta

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.core import tenants
from app.core.jobs import control as job_control
from app.core.jobs import job_queue, job_rows, leases, steps
from app.core.jobs.steps import Step
from app.database import Database, database_now
from app.models import Job
from tests.support.callers.api import FreshTenant
from tests.support.secrets import MASTER_KEYS


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


LATER = "'2099-01-01T00:00:00Z'"


class Place:
    """A tenant's job that is asked for once, half-way, in a database of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        tenant_id, _ = tenants.create(database, MASTER_KEYS, "whose job is stuck")
        with database.transaction(tenant_id) as session:
            self.job = job_queue.enqueue(session, tenant_id, kind="evidence_pack", args={})
        self.set("cursor = 'half-way'")

    def claim(self) -> Job | None:
        with self.database.across_tenants() as session:
            return leases.claim(session, self.job.tenant_id, self.job.id)

    def set(self, what: str) -> None:
        """Write to the row."""
        with self.database.across_tenants() as session:
            session.execute(text(f"UPDATE jobs SET {what}"))

    def freed(self) -> int:
        with self.database.across_tenants() as session:
            return leases.free_stuck(session)


@pytest.fixture
def place(fresh_database: Database) -> Place:
    return Place(fresh_database)


@pytest.mark.parametrize(
    "written",
    [
        f"run_at = {LATER}",
        f"run_at = {LATER}, status = 'retrying', attempts = 3",
        "run_at = clock_timestamp() + interval '25 hours 2 minutes', status = 'running'",
        f"ring_at = {LATER}",
        "status = 'running', ring_at = clock_timestamp() + interval '2 minutes'",
    ],
)
def test_a_stuck_job_goes_on_where_it_was(place: Place, written: str) -> None:
    place.set(written)
    with capture_logs() as said:
        assert place.freed() == 1
    assert [(line["event"], line["job"]) for line in said] == [("job_was_stuck", str(place.job.id))]
    mine = place.claim()
    assert mine is not None
    assert (mine.cursor, mine.claims_lost) == ("half-way", 0)
    assert place.freed() == 0, "once"


def test_a_lease_that_is_too_long_ends_when_a_new_one_would(place: Place) -> None:
    held = place.claim()
    assert held is not None
    place.set(f"locked_until = {LATER}")
    assert place.freed() == 1
    assert place.claim() is None, "they may be at work on it"
    with place.database.across_tenants() as session:
        left = job_rows.get(session, place.job.tenant_id, place.job.id)
        assert left.locked_until is not None
        assert left.locked_until <= database_now(session) + leases.LEASE
        assert steps.advance(session, held, Step(None, {})), "and write what came of it"


@pytest.mark.parametrize(
    "written",
    [
        "run_at = clock_timestamp() + interval '25 hours', status = 'running'",
        "run_at = clock_timestamp() + interval '1 hour', status = 'retrying'",
        "locked_until = clock_timestamp() + interval '30 s', status = 'running'",
        "locked_until = clock_timestamp() - interval '1 day', claims_lost = 3",
        "run_at = clock_timestamp() - interval '1 day', claims_lost = 3",
        "ring_at = clock_timestamp()",
        f"run_at = {LATER}, status = 'dead', finished_at = clock_timestamp()",
    ],
)
def test_what_waits_as_it_should_is_left_alone(place: Place, written: str) -> None:
    place.set(written)
    assert place.freed() == 0
