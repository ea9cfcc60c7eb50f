"""Steps and errands of durable jobs, as a worker runs them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from app.core.jobs import job_queue, job_rows, leases
from app.core.jobs.steps import Errand, JobFailed, Step
from app.database import Database
from app.errors import Unavailable
from app.models import Job
from jobs.actors import registry
from jobs.durable import run_job
from jobs.durable.run_job import work_on
from jobs.process.broker import TIME_LIMIT_MS, BellBroker
from jobs.process.runtime import Runtime
from tests.support.callers.api import FreshTenant

KIND = "errand_of_a_test"


@pytest.fixture
def run(
    runtime: Runtime, database: Database, tenant: FreshTenant, monkeypatch: pytest.MonkeyPatch
) -> Callable[[run_job.Work], Job]:
    """Run one job whose step is `work` until it waits or ends; return it as it is then."""

    def run(work: run_job.Work) -> Job:
        monkeypatch.setitem(run_job.KINDS, KIND, lambda _: work)
        with database.transaction(tenant.id) as session:
            job = job_queue.enqueue(session, tenant.id, kind=KIND, args={})
        work_on(runtime, tenant.id, job.id)
        with database.transaction(tenant.id) as session:
            return job_rows.get(session, tenant.id, job.id)

    return run


def open_transactions(owner: Engine) -> int:
    query = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND state LIKE 'idle in transaction%'
    """
    with owner.connect() as connection:
        return connection.scalar(text(query)) or 0


def test_an_errand_runs_between_two_transactions(
    run: Callable[[run_job.Work], Job], admin_engine: Engine
) -> None:
    def talk() -> str:
        # The process's other threads have short ones of their own; none may last until this ends.
        while open_transactions(admin_engine):
            pass
        return "heard"

    def step(session: Session, tenant_id: UUID, job: Job) -> Errand[str]:
        return Errand(talk, lambda _, said: Step(None, {"said": said}))

    done = run(step)
    assert (done.status, done.progress) == ("succeeded", '{"said":"heard"}')


def test_an_errand_may_take_longer_than_a_turn_at_a_lane() -> None:
    # Nothing is connected.
    broker = BellBroker("redis://127.0.0.1:9")
    registry.declare(broker)
    limits = {name: broker.get_actor(name).options["time_limit"] for name in ("deliver", "run_job")}
    # The daily verification reads 200,000 leaves a second beside other work, of any number.
    assert limits == {"deliver": TIME_LIMIT_MS, "run_job": 3_600_000}


def test_an_errand_that_fails_is_tried_again_and_its_reason_is_shown(
    run: Callable[[run_job.Work], Job],
) -> None:
    def talk() -> None:
        raise JobFailed("Nobody will ever answer.")

    done = run(lambda *_: Errand(talk, lambda *_: Step(None, {})))
    assert (done.status, done.error) == ("dead", "Nobody will ever answer.")

    def stumble() -> None:
        raise OSError("a word of a driver")

    again = run(lambda *_: Errand(stumble, lambda *_: Step(None, {})))
    assert again.status == "retrying"
    assert "driver" not in str(again.error)


def take_over(owner: Engine, tenant: FreshTenant) -> None:
    """Take a tenant's jobs from the workers that have claimed them."""
    taken = "UPDATE jobs SET claim_no = claim_no + 1 WHERE tenant_id = :tenant"
    with owner.begin() as connection:
        connection.execute(text(taken), {"tenant": tenant.id})


def test_what_an_errand_records_is_dropped_when_another_took_the_job_over(
    run: Callable[[run_job.Work], Job], admin_engine: Engine, tenant: FreshTenant
) -> None:
    def talk() -> None:
        take_over(admin_engine, tenant)

    def record(session: Session, said: Any) -> Step:
        session.execute(text("UPDATE tenants SET name = 'twice'"))
        return Step(None, {})

    done = run(lambda *_: Errand(talk, record))
    assert done.status == "running"
    with admin_engine.connect() as connection:
        found = connection.scalar(
            text("SELECT name FROM tenants WHERE id = :id"), {"id": tenant.id}
        )
    assert found != "twice"


def test_the_lease_is_renewed_while_an_errand_runs(
    database: Database, tenant: FreshTenant, admin_engine: Engine
) -> None:
    with database.transaction(tenant.id) as session:
        enqueued = job_queue.enqueue(session, tenant.id, kind="expire_bundles", args={})
    with database.transaction(tenant.id) as session:
        job = leases.claim(session, tenant.id, enqueued.id)
    assert job is not None
    ends_at = job.locked_until
    assert ends_at is not None

    def lease_now() -> Any:
        with admin_engine.connect() as connection:
            query = text("SELECT locked_until FROM jobs WHERE id = :id")
            return connection.scalar(query, {"id": job.id})

    with run_job.renewed(database, job, every=0.01):
        while lease_now() <= ends_at + timedelta(seconds=0.05):
            pass


def test_that_the_database_was_away_is_not_taken_for_a_worker_s_death(
    runtime: Runtime, database: Database, tenant: FreshTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Step:
        raise Unavailable("The database does not answer.")

    monkeypatch.setitem(run_job.KINDS, KIND, lambda _: away)
    with database.transaction(tenant.id) as session:
        job = job_queue.enqueue(session, tenant.id, kind=KIND, args={})
    for _ in range(3):
        with pytest.raises(Unavailable):
            work_on(runtime, tenant.id, job.id)
        with database.transaction(tenant.id) as session:
            left = job_rows.locked(session, tenant.id, job.id)
            assert left.locked_until is not None, "whoever comes when it ends goes on"
            assert left.claims_lost == 0
            left.locked_until = left.run_at
