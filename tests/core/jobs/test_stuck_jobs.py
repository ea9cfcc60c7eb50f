"""Jobs that were put off too long, as when the database's clock is set back, go on."""

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.core import tenants
from app.core.jobs import job_queue, job_rows, leases, steps, stuck_jobs
from app.core.jobs.steps import Step
from app.database import Database, database_now
from app.models import Job
from tests.support.secrets import MASTER_KEYS

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
            return stuck_jobs.free_stuck(session)


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
