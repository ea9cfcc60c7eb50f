"""Durable jobs: claims, steps, their pace, workers that die, and stuck jobs."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.core import tenants
from app.core.jobs import control as job_control
from app.core.jobs import job_queue, job_rows, leases, steps
from app.core.jobs.steps import Step
from app.database import Database, database_now
from app.models import NO_TENANT, Job
from tests.support.secrets import MASTER_KEYS

LATER = "'2099-01-01T00:00:00Z'"


class Place:
    """A tenant's jobs in a database of their own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.tenant_id, _ = tenants.create(database, MASTER_KEYS, "whose workers die")

    def job(self, key: str | None = None) -> Job:
        with self.database.transaction(self.tenant_id) as session:
            return job_queue.enqueue(
                session, self.tenant_id, kind="bulk_replay", args={}, dedupe_key=key
            )

    def kill(self, job: Job) -> None:
        """Have its workers die until it is dead."""
        while self.read(job).status != "dead":
            self.set("run_at = clock_timestamp()")
            if self.claim(job) is not None:
                self.end_lease()

    def ring(self) -> Job:
        """Ask for the clock's own job, as its tick does."""
        with self.database.across_tenants() as session:
            return job_queue.recur(session, kind="anchor_audit", dedupe_key="due", args={})

    def claim(self, job: Job) -> Job | None:
        with self.database.across_tenants() as session:
            return leases.claim(session, job.tenant_id, job.id)

    def claimed(self, job: Job) -> Job:
        """Claim a job that is due."""
        mine = self.claim(job)
        assert mine is not None
        return mine

    def read(self, job: Job) -> Job:
        with self.database.across_tenants() as session:
            return job_rows.get(session, job.tenant_id, job.id)

    def set(self, what: str) -> None:
        """Write to every row."""
        with self.database.across_tenants() as session:
            session.execute(text(f"UPDATE jobs SET {what}"))

    def end_lease(self) -> None:
        self.set("locked_until = clock_timestamp() - interval '1 ms'")

    def die(self, job: Job) -> None:
        """Take the job and never come back."""
        self.set("run_at = clock_timestamp()")
        self.claimed(job)
        self.end_lease()

    def advance(self, job: Job, step: Step) -> bool:
        with self.database.across_tenants() as session:
            return steps.advance(session, job, step)

    def fail(self, job: Job) -> None:
        with self.database.across_tenants() as session:
            steps.fail(session, job, "the disk is full")

    def freed(self) -> int:
        with self.database.across_tenants() as session:
            return leases.free_stuck(session)

    def now(self) -> datetime:
        with self.database.across_tenants() as session:
            return database_now(session)


@pytest.fixture
def place(fresh_database: Database) -> Place:
    return Place(fresh_database)


def test_a_lost_worker_s_job_is_due_again_when_its_lease_ends(place: Place) -> None:
    job = place.job()
    first = place.claimed(job)
    place.end_lease()
    second = place.claimed(job)
    assert not place.advance(first, Step(None, {}))
    assert place.advance(second, Step(None, {"done": 1}))
    assert place.read(job).status == "succeeded"


def test_a_job_that_keeps_failing_is_dead_stays_and_can_be_retried(place: Place) -> None:
    job = place.job()
    for _ in range(len(steps.RETRY_WAITS) + 1):
        place.set("run_at = clock_timestamp()")
        place.fail(place.claimed(job))
    dead = place.read(job)
    assert (dead.status, dead.error) == ("dead", "the disk is full")
    assert place.claim(job) is None
    with place.database.transaction(place.tenant_id) as session:
        assert job_control.retry(session, place.tenant_id, job.id).status == "queued"
    assert place.claim(job) is not None


def test_the_same_job_is_enqueued_once_while_it_is_open(place: Place) -> None:
    first = place.job("k")
    assert place.job("k").id == first.id
    with place.database.transaction(place.tenant_id) as session:
        job_control.cancel(session, place.tenant_id, first.id)
    assert place.job("k").id != first.id


@pytest.mark.parametrize(
    ("late", "seconds", "is_made_up"), [("0.5 s", 1, True), ("1 hour", 2, False)]
)
def test_a_step_s_wait_counts_from_when_it_was_due_unless_that_is_long_ago(
    place: Place, late: str, seconds: int, is_made_up: bool
) -> None:
    job = place.job()
    place.set(f"run_at = clock_timestamp() - interval '{late}'")
    was_due = place.read(job).run_at
    assert place.advance(place.claimed(job), Step("on", {}, timedelta(seconds=seconds)))
    assert (place.read(job).run_at - was_due == timedelta(seconds=seconds)) is is_made_up
    assert place.claim(job) is None


def test_a_job_whose_workers_die_waits_longer_after_each_and_is_dead_in_the_end(
    place: Place,
) -> None:
    job = place.job()
    place.die(job)
    again = place.claim(job)
    assert again is not None, "once may be any worker's death"
    assert again.error is None
    place.end_lease()
    for died, wait in enumerate(leases.LOST_WAITS[1:], 2):
        before = place.now()
        assert place.claim(job) is None
        found = place.read(job)
        assert (found.status, found.claims_lost) == ("retrying", died)
        assert f"{died} times" in (found.error or "")
        assert (
            before + timedelta(seconds=wait * (1 - leases.JITTER))
            <= found.run_at
            <= place.now() + timedelta(seconds=wait * (1 + leases.JITTER))
        )
        assert place.claim(job) is None, "its time has not come"
        place.die(job)
    assert place.claim(job) is None
    dead = place.read(job)
    assert (dead.status, dead.locked_until) == ("dead", None)
    assert "5 times in a row" in (dead.error or "")


@pytest.mark.parametrize("failed", [False, True])
def test_only_deaths_in_a_row_are_counted(place: Place, failed: bool) -> None:
    job = place.job()
    place.die(job)
    mine = place.claimed(job)
    if failed:
        place.fail(mine)
    else:
        assert place.advance(mine, Step("on", {}))
    assert place.read(job).claims_lost == 0


def test_a_worker_that_stood_still_may_still_write_what_came_of_it(place: Place) -> None:
    job = place.job()
    place.die(job)
    mine = place.claimed(job)
    place.end_lease()
    assert place.claim(job) is None
    assert place.read(job).status == "retrying"
    assert place.advance(mine, Step(None, {}))
    assert place.read(job).status == "succeeded"


def test_what_is_let_go_is_not_counted(place: Place) -> None:
    job = place.job()
    for _ in range(len(leases.LOST_WAITS) + 2):
        mine = place.claimed(job)
        with place.database.across_tenants() as session:
            leases.release(session, mine)
        assert place.claim(job) is None, "it is leased for as long as it would have been"
        place.end_lease()
    assert place.read(job).claims_lost == 0


def test_the_clock_s_own_job_does_not_stay_dead(place: Place) -> None:
    job = place.ring()
    place.kill(job)
    for _ in range(2):
        assert place.ring().id == job.id
        mine = place.claim(job)
        assert mine is not None, "tried each time that the clock rings"
        place.end_lease()
        assert place.claim(job) is None
        assert place.read(job).status == "dead", "once"
    place.ring()
    mine = place.claimed(job)
    assert place.advance(mine, Step(None, {}))
    assert (place.read(job).status, place.read(job).claims_lost) == ("succeeded", 0)
    assert job.tenant_id == NO_TENANT


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
    job = place.job()
    place.set(f"cursor = 'half-way', {written}")
    with capture_logs() as said:
        assert place.freed() == 1
    assert [(line["event"], line["job"]) for line in said] == [("job_was_stuck", str(job.id))]
    mine = place.claimed(job)
    assert (mine.cursor, mine.claims_lost) == ("half-way", 0)
    assert place.freed() == 0, "once"


def test_a_lease_that_is_too_long_ends_when_a_new_one_would(place: Place) -> None:
    job = place.job()
    held = place.claimed(job)
    place.set(f"locked_until = {LATER}")
    assert place.freed() == 1
    assert place.claim(job) is None, "they may be at work on it"
    left = place.read(job).locked_until
    assert left is not None
    assert left <= place.now() + leases.LEASE
    assert place.advance(held, Step(None, {})), "and write what came of it"


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
    place.job()
    place.set(written)
    assert place.freed() == 0
