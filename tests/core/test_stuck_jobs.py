"""The clock's own jobs go on whatever somebody wrote to their rows."""

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
    """A clock's job, in a database of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ring()

    def ring(self) -> Job:
        with self.database.across_tenants() as session:
            return job_queue.recur(session, kind="verify_audit", dedupe_key="all", args={})

    def claim(self, job: Job) -> Job | None:
        with self.database.across_tenants() as session:
            return leases.claim(session, job.tenant_id, job.id)

    def set(self, what: str) -> None:
        """Write to every job, as who owns the database can."""
        with self.database.across_tenants() as session:
            session.execute(text(f"UPDATE jobs SET {what}"))


@pytest.fixture
def place(fresh_database: Database) -> Place:
    return Place(fresh_database)


@pytest.mark.parametrize(
    "written",
    [
        f"run_at = {LATER}",
        f"run_at = {LATER}, status = 'retrying'",
        f"status = 'running', locked_until = {LATER}",
        f"ring_at = {LATER}",
        f"run_at = {LATER}, locked_until = {LATER}, ring_at = {LATER}, claim_no = 0",
        f"run_at = {LATER}, finished_at = {LATER}, status = 'succeeded'",
        f"locked_until = {LATER}, finished_at = '2000-01-01', status = 'dead'",
        f"finished_at = {LATER}, status = 'cancelled', claims_lost = 1000",
        "run_at = clock_timestamp() + interval '62 minutes'",
        "locked_until = clock_timestamp() + interval '2 minutes'",
    ],
)
def test_a_ring_makes_it_due_whatever_its_row_says(place: Place, written: str) -> None:
    place.set(f"{written}, cursor = 'at the end', progress = '{{}}'")
    mine = place.claim(place.ring())
    assert mine is not None
    assert (mine.cursor, mine.progress, mine.ring_at) == (None, None, None), "from its beginning"


@pytest.mark.parametrize(
    "written",
    [
        "run_at = clock_timestamp() + interval '1 hour', status = 'retrying', attempts = 5",
        "locked_until = clock_timestamp() + interval '30 s', status = 'running'",
        "ring_at = clock_timestamp()",
    ],
)
def test_a_ring_leaves_alone_what_waits_or_is_worked_on_as_it_should(
    place: Place, written: str
) -> None:
    place.set(f"{written}, cursor = 'half-way'")
    left = place.ring()
    assert (left.cursor, left.claim_no) == ("half-way", 0)


def test_a_row_that_was_planted_behind_the_open_one_changes_nothing(place: Place) -> None:
    place.set(f"run_at = {LATER}")
    with place.database.across_tenants() as session:
        session.execute(
            text(
                "INSERT INTO jobs (tenant_id, id, kind, args, dedupe_key, status, finished_at)"
                " SELECT tenant_id, 'ffffffff-ffff-7fff-bfff-ffffffffffff', kind, args, dedupe_key,"
                f" 'succeeded', {LATER} FROM jobs"
            )
        )
    for _ in range(2):
        mine = place.claim(place.ring())
        assert mine is not None
        with place.database.across_tenants() as session:
            assert steps.advance(session, mine, Step(None, {}))


def test_no_row_of_another_keeps_it_waiting_as_what_may_kill_its_worker(place: Place) -> None:
    with place.database.across_tenants() as session:
        job_queue.enqueue(session, None, kind="made_up", args={})
    place.set(f"claims_lost = 5, locked_until = {LATER} WHERE kind = 'made_up'")
    place.set("claims_lost = 5 WHERE kind <> 'made_up'")
    assert place.claim(place.ring()) is not None


def test_whoever_held_it_writes_nothing_any_more(place: Place) -> None:
    held = place.claim(place.ring())
    assert held is not None
    place.set(f"locked_until = {LATER}")
    place.ring()
    with place.database.across_tenants() as session:
        assert not steps.advance(session, held, Step(None, {}))


def a_job(place: Place, kind: str) -> Job:
    """Make a tenant's job that nobody asks for a second time."""
    tenant_id, _ = tenants.create(place.database, MASTER_KEYS, "whose job is stuck")
    with place.database.transaction(tenant_id) as session:
        job = job_queue.enqueue(session, tenant_id, kind=kind, args={}, dedupe_key="it")
    place.set(f"cursor = 'half-way' WHERE id = '{job.id}'")
    return job


def freed(place: Place) -> int:
    with place.database.across_tenants() as session:
        return stuck_jobs.free_stuck(session)


@pytest.mark.parametrize("kind", ["evidence_pack", "digest", "bulk_replay", "expire_bundles"])
@pytest.mark.parametrize(
    "written",
    [
        f"run_at = {LATER}",
        f"run_at = {LATER}, status = 'retrying', attempts = 3",
        "run_at = clock_timestamp() + interval '25 hours 2 minutes', status = 'running'",
        "run_at = 'infinity'",
        "run_at = '-infinity'",
        f"ring_at = {LATER}",
        "status = 'running', ring_at = clock_timestamp() + interval '2 minutes'",
        f"claim_no = {2**63 - 1}",
    ],
)
def test_a_stuck_job_of_any_kind_goes_on_where_it_was(
    place: Place, kind: str, written: str
) -> None:
    job = a_job(place, kind)
    place.set(f"{written} WHERE id = '{job.id}'")
    with capture_logs() as said:
        assert freed(place) == 1
    assert [(line["event"], line["job"]) for line in said] == [("job_was_stuck", str(job.id))]
    mine = place.claim(job)
    assert mine is not None
    assert (mine.cursor, mine.claims_lost) == ("half-way", 0)
    assert freed(place) == 0, "once"


@pytest.mark.parametrize("until", [LATER, "'infinity'"])
def test_who_may_hold_a_stuck_job_has_a_lease_s_time_and_writes_nothing(
    place: Place, until: str
) -> None:
    job = a_job(place, "evidence_pack")
    held = place.claim(job)
    assert held is not None
    place.set(f"locked_until = {until} WHERE id = '{job.id}'")
    assert freed(place) == 1
    assert place.claim(job) is None, "they may be at work on it"
    with place.database.across_tenants() as session:
        assert not leases.renew(session, held)
        assert not steps.advance(session, held, Step(None, {}))
        left = job_rows.get(session, job.tenant_id, job.id)
        assert left.locked_until is not None
        assert left.locked_until <= database_now(session) + leases.LEASE
    place.set(f"locked_until = clock_timestamp() - interval '1 ms' WHERE id = '{job.id}'")
    mine = place.claim(job)
    assert mine is not None
    assert (mine.cursor, mine.claims_lost) == ("half-way", 0), "no death"


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("digest", "run_at = clock_timestamp() + interval '25 hours', status = 'running'"),
        ("evidence_pack", "run_at = clock_timestamp() + interval '1 hour', status = 'retrying'"),
        ("evidence_pack", "locked_until = clock_timestamp() + interval '30 s', status = 'running'"),
        ("evidence_pack", "locked_until = clock_timestamp() - interval '1 day', claims_lost = 3"),
        ("evidence_pack", "run_at = clock_timestamp() - interval '1 day', claims_lost = 3"),
        ("evidence_pack", "ring_at = clock_timestamp()"),
        ("evidence_pack", f"run_at = {LATER}, status = 'dead', finished_at = clock_timestamp()"),
    ],
)
def test_what_waits_as_it_should_is_left_alone(place: Place, kind: str, written: str) -> None:
    job = a_job(place, kind)
    place.set(f"{written} WHERE id = '{job.id}'")
    assert freed(place) == 0


def test_a_row_that_somebody_has_locked_keeps_no_other_waiting(place: Place) -> None:
    one, other = a_job(place, "evidence_pack"), a_job(place, "digest")
    place.set(f"run_at = {LATER}")
    row = text("SELECT FROM jobs WHERE id = :id FOR UPDATE")
    with place.database.across_tenants() as somebody:
        somebody.execute(row, {"id": one.id})
        assert freed(place) == 2, "the clock's own, and the other"
    assert place.claim(one) is None
    assert place.claim(other) is not None
    assert freed(place) == 1
