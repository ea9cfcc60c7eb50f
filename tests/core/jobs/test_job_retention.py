"""Jobs that have outlived their history go; lists and pruning read no more than they must."""

import dataclasses
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, select, text

from app import ids
from app.core import partitions, tenants
from app.core.jobs import control as job_control
from app.core.jobs import job_rows, leases
from app.database import Database
from app.models import NO_TENANT, Job
from app.settings import Settings
from jobs.actors import prune_history
from jobs.process import runtime
from tests.support.database.databases import made_database
from tests.support.database.plans import explained, rows_met, rows_read
from tests.support.secrets import MASTER_KEYS

MANY = 30_000
PAGE = 50
# Each row is counted by each step of the plan; of a hundred dead ones all are looked at and sorted.
MOST_READ = 5 * PAGE


@pytest.fixture(scope="module")
def own(settings: Settings, admin_engine: Engine) -> Iterator[Settings]:
    with made_database(settings, admin_engine) as made:
        yield made


@pytest.fixture(scope="module")
def database(own: Settings) -> Iterator[Database]:
    opened = Database(own.database_url, application="tests")
    yield opened
    opened.close()


class Crowd:
    """A tenant with very many finished jobs of one kind, older than some of another."""

    def __init__(self, database: Database, owner: Engine) -> None:
        self.database = database
        self.tenant_id, _ = tenants.create(database, MASTER_KEYS, "with many jobs")
        insert = text(
            "INSERT INTO jobs (tenant_id, id, kind, args, dedupe_key, status, finished_at)"
            " SELECT :tenant, (lpad(to_hex(:first + n), 12, '0') || '70008000000000000000')::uuid,"
            "        :kind, '{}', n, :status, clock_timestamp()"
            "   FROM generate_series(1, :count) AS n"
        )
        with owner.begin() as connection:
            for first, kind, status, count in (
                (0, "expire_bundles", "succeeded", 100),
                (0x1000, "evidence_pack", "succeeded", MANY),
                (0x100000, "bulk_replay", "dead", 100),
            ):
                values = {"first": first, "kind": kind, "status": status, "count": count}
                connection.execute(insert, values | {"tenant": self.tenant_id})
        with owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE jobs"))

    def rows_read(self, before: UUID | None = None, **wanted: str | None) -> float:
        filters: dict[str, Any] = {"kind": None, "status": None, **wanted}
        with self.database.transaction(self.tenant_id) as session:
            query = job_control._wanted(self.tenant_id, before, **filters).limit(PAGE)
            return rows_read(session, query)


@pytest.fixture(scope="module")
def crowd(database: Database, own: Settings) -> Iterator[Crowd]:
    owner = create_engine(own.database_admin_url)
    yield Crowd(database, owner)
    owner.dispose()


@pytest.mark.parametrize(
    ("wanted", "before"),
    [
        ({"kind": "expire_bundles"}, None),
        ({"kind": "bulk_replay"}, None),
        ({"kind": "evidence_pack"}, None),
        ({"kind": "evidence_pack"}, 0x2000),
        ({"kind": "expire_bundles"}, 0x100000),
        ({"kind": "bulk_replay"}, 0x100032),
        ({"kind": "no_such_kind"}, None),
        ({"kind": "bulk_replay", "status": "dead"}, None),
        ({}, 0x4000),
    ],
)
def test_a_page_reads_no_more_jobs_than_it_has(
    crowd: Crowd, wanted: dict[str, str], before: int | None
) -> None:
    at = None if before is None else UUID(int=before << 80)
    assert crowd.rows_read(at, **wanted) <= MOST_READ


@pytest.mark.parametrize(("before", "found"), [("2099-01-01", 100), ("2000-01-01", 0)])
def test_a_batch_of_old_jobs_is_found_without_reading_the_others(
    crowd: Crowd, before: str, found: int
) -> None:
    picked = job_rows._FORGET.split("IN (")[1].strip().removesuffix(")")
    with crowd.database.across_tenants() as session:
        plan = explained(session.connection(), picked, (before, NO_TENANT, 100))
    assert plan[0]["Actual Rows"] == found
    assert rows_met(plan) <= 4 * found + 2


def test_a_look_for_stuck_jobs_reads_no_job_that_has_ended(crowd: Crowd) -> None:
    with crowd.database.across_tenants() as session:
        # The moments that the clock says are rows too.
        assert rows_read(session, select(Job.id).where(leases.IS_STUCK)) <= MOST_READ


# What goes


@pytest.fixture
def place(
    fresh_database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    """Have a worker in a database of its own, which prunes in small batches."""
    monkeypatch.setattr(job_rows, "AT_ONCE", 2)
    url = fresh_database.engine.url.render_as_string(hide_password=False)
    here = dataclasses.replace(settings, database_url=url, redis_url=None)
    opened = runtime.Runtime.open(here, threads=4)
    monkeypatch.setattr(runtime._Process, "runtime", opened)
    yield fresh_database
    opened.close()


def insert(database: Database, owner: UUID, status: str, finished: str | None) -> UUID:
    """Put a job there that ended so long before what is left of history begins."""
    job_id = ids.new()
    with database.across_tenants() as session:
        begins = partitions.begins_at(session)
        session.execute(
            text(
                "INSERT INTO jobs (tenant_id, id, kind, args, status, finished_at)"
                " VALUES (:tenant, :id, 'bulk_replay', '{}', :status,"
                "         :begins - CAST(:finished AS interval))"
            ),
            {
                "tenant": owner,
                "id": job_id,
                "status": status,
                "begins": begins,
                "finished": finished,
            },
        )
    return job_id


def left(database: Database) -> set[UUID]:
    with database.across_tenants() as session:
        return set(session.scalars(text("SELECT id FROM jobs")))


def test_a_job_goes_with_the_history_of_the_week_in_which_it_ended(place: Database) -> None:
    tenant, _ = tenants.create(place, MASTER_KEYS, "one")
    other, _ = tenants.create(place, MASTER_KEYS, "another")
    for owner in (tenant, other):
        for status in ("succeeded", "dead", "cancelled"):
            insert(place, owner, status, "1 second")
    stay = {
        *(insert(place, tenant, status, "-1 second") for status in ("succeeded", "dead")),
        *(insert(place, tenant, status, None) for status in ("queued", "running", "retrying")),
        insert(place, NO_TENANT, "succeeded", "100 days"),
        insert(place, NO_TENANT, "dead", "100 days"),
    }
    prune_history.run(runtime.runtime())
    assert left(place) == stay


def test_hours_go_with_their_history_and_are_summed_when_they_are_over(place: Database) -> None:
    tenant, _ = tenants.create(place, MASTER_KEYS, "one")
    insert_hours = text(
        "INSERT INTO delivery_hours (tenant_id, at, webhook_id, attempted)"
        " SELECT :tenant, now() - age * interval '1 day', gen_random_uuid(), 1"
        "   FROM unnest(ARRAY[0, 3, 3, 100]) AS age"
    )
    with place.transaction(tenant) as session:
        session.execute(insert_hours, {"tenant": tenant})
    for _ in range(2):
        prune_history.run(runtime.runtime())
        with place.transaction(tenant) as session:
            summed = session.scalars(text("SELECT attempted FROM tenant_hours")).all()
            assert session.scalar(text("SELECT count(*) FROM delivery_hours")) == 3
        assert summed == [2]


def test_a_job_that_is_retried_just_now_stays(place: Database) -> None:
    tenant, _ = tenants.create(place, MASTER_KEYS, "one")
    job_id = insert(place, tenant, "dead", "1 second")
    with place.transaction(tenant) as session:
        job_control.retry(session, tenant, job_id)
        prune_history.run(runtime.runtime())
    prune_history.run(runtime.runtime())
    assert left(place) == {job_id}
