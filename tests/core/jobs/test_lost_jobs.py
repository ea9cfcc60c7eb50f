"""Jobs whose worker dies: counted, tried with care, dead in the end; not the clock's own."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from app.core import tenants
from app.core.jobs import job_queue, job_rows, leases, steps
from app.core.jobs.steps import Step
from app.database import Database, database_now
from app.models import NO_TENANT, Job
from tests.support.secrets import MASTER_KEYS


class Place:
    """A tenant's jobs in a database of their own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.tenant_id, _ = tenants.create(database, MASTER_KEYS, "whose workers die")

    def job(self, kind: str = "bulk_replay") -> Job:
        with self.database.transaction(self.tenant_id) as session:
            return job_queue.enqueue(session, self.tenant_id, kind=kind, args={})

    def kill(self, job: Job) -> None:
        """Have its workers die until it is dead."""
        while self.read(job).status != "dead":
            self.make_due(job)
            if self.claim(job) is not None:
                self.end_lease(job)

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

    def set(self, job: Job, what: str) -> None:
        with self.database.across_tenants() as session:
            session.execute(text(f"UPDATE jobs SET {what} WHERE id = :id"), {"id": job.id})

    def make_due(self, job: Job) -> None:
        self.set(job, "run_at = clock_timestamp()")

    def end_lease(self, job: Job) -> None:
        self.set(job, "locked_until = clock_timestamp() - interval '1 ms'")

    def die(self, job: Job) -> None:
        """Take the job and never come back."""
        self.make_due(job)
        assert self.claim(job) is not None
        self.end_lease(job)

    def advance(self, job: Job, step: Step) -> None:
        with self.database.across_tenants() as session:
            assert steps.advance(session, job, step)


@pytest.fixture
def place(fresh_database: Database) -> Place:
    return Place(fresh_database)


def test_a_job_whose_workers_die_waits_longer_after_each_and_is_dead_in_the_end(
    place: Place,
) -> None:
    job = place.job()
    place.die(job)
    again = place.claim(job)
    assert again is not None, "once may be any worker's death"
    assert again.error is None
    place.end_lease(job)
    for died, wait in enumerate(leases.LOST_WAITS[1:], 2):
        before = _now(place)
        assert place.claim(job) is None
        found = place.read(job)
        assert (found.status, found.claims_lost) == ("retrying", died)
        assert f"{died} times" in (found.error or "")
        assert (
            before + timedelta(seconds=wait * (1 - leases.JITTER))
            <= found.run_at
            <= _now(place) + timedelta(seconds=wait * (1 + leases.JITTER))
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
        with place.database.across_tenants() as session:
            steps.fail(session, mine, "the disk is full")
    else:
        place.advance(mine, Step("on", {}))
    assert place.read(job).claims_lost == 0


def test_a_worker_that_stood_still_may_still_write_what_came_of_it(place: Place) -> None:
    job = place.job()
    place.die(job)
    mine = place.claimed(job)
    place.end_lease(job)
    assert place.claim(job) is None
    assert place.read(job).status == "retrying"
    place.advance(mine, Step(None, {}))
    assert place.read(job).status == "succeeded"


def test_what_is_let_go_is_not_counted(place: Place) -> None:
    job = place.job()
    for _ in range(len(leases.LOST_WAITS) + 2):
        mine = place.claimed(job)
        with place.database.across_tenants() as session:
            leases.release(session, mine)
        assert place.claim(job) is None, "it is leased for as long as it would have been"
        place.end_lease(job)
    assert place.read(job).claims_lost == 0


def test_the_clock_s_own_job_does_not_stay_dead(place: Place) -> None:
    job = place.ring()
    place.kill(job)
    for _ in range(2):
        assert place.ring().id == job.id
        mine = place.claim(job)
        assert mine is not None, "tried each time that the clock rings"
        place.end_lease(job)
        assert place.claim(job) is None
        assert place.read(job).status == "dead", "once"
    place.ring()
    mine = place.claimed(job)
    place.advance(mine, Step(None, {}))
    assert (place.read(job).status, place.read(job).claims_lost) == ("succeeded", 0)
    assert job.tenant_id == NO_TENANT


def _now(place: Place) -> datetime:
    with place.database.across_tenants() as session:
        return database_now(session)
