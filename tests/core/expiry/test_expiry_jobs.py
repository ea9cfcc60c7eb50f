"""Expiry runs in steps, one job at a time, and goes on after a kill."""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from app.core.jobs import leases, steps
from app.core.records import expiry
from app.database import Database
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_record
from tests.support.database.databases import execute
from tests.support.workers.expiring import Expirer, keep_for


def test_what_has_expired_is_looked_through_each_week(
    api: ApiOf,
    session: dict[str, Any],
    expirer: Expirer,
    admin_engine: Engine,
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "MOST_RECORDS", 2)
    records = [make_record(api(), session["id"]) for _ in range(5)]
    keep_for(api(), 1)
    for record in records[:4]:
        expirer.age(record, days=10)
    assert expirer.run() == {"expired": 4}
    expirer.age(records[4], days=400)
    assert expirer.run() is None
    week = "UPDATE tenants SET looked_through_at = looked_through_at - interval '8 days'"
    execute(admin_engine, f"{week} WHERE id = :id", id=tenant.id)
    assert expirer.run() == {"expired": 1}
    assert expirer.bundles() == set()
    assert expirer.run() is None


def test_what_came_due_while_all_was_looked_through_waits_no_week(
    api: ApiOf,
    session: dict[str, Any],
    expirer: Expirer,
    admin_engine: Engine,
    tenant: FreshTenant,
) -> None:
    first, second = (make_record(api(), session["id"]) for _ in range(2))
    keep_for(api(), 10)
    expirer.age(first, days=20)
    assert expirer.run() == {"expired": 1}
    week = "UPDATE tenants SET looked_through_at = looked_through_at - interval '8 days'"
    execute(admin_engine, f"{week} WHERE id = :id", id=tenant.id)
    looks = expirer.enqueue_due()
    assert looks is not None
    # It is due, and the days change, before the job that looks has come to its end.
    expirer.age(second, days=10)
    keep_for(api(), 3650)
    expirer.enqueue_due()
    expirer.finish(looks)
    expirer.run()
    assert expirer.bundles() == set()


@pytest.mark.parametrize("size", [1, 3])
def test_many_steps_expire_each_once(
    api: ApiOf,
    session: dict[str, Any],
    expirer: Expirer,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    monkeypatch.setattr(expiry, "MOST_RECORDS", size)
    monkeypatch.setattr(expiry, "MOST_BYTES", 1)
    for _ in range(7):
        expirer.age(make_record(api(), session["id"]), days=3)
    keep_for(api(), 2)
    assert expirer.run() == {"expired": 7}
    assert expirer.bundles() == set()


def test_one_run_at_a_time(api: ApiOf, session: dict[str, Any], expirer: Expirer) -> None:
    expirer.age(make_record(api(), session["id"]), days=3)
    keep_for(api(), 2)
    assert expirer.enqueue_due() == expirer.enqueue_due()


class Killed(Exception):
    """Stands for the end of a process before its commit."""


def _step_and_die(opened: Session, tenant_id: UUID, job_id: UUID) -> None:
    claimed = leases.claim(opened, tenant_id, job_id)
    assert claimed is not None
    expiry.step(opened, tenant_id, claimed)
    raise Killed


def test_a_job_that_was_killed_goes_on_where_it_was(
    api: ApiOf,
    session: dict[str, Any],
    expirer: Expirer,
    database: Database,
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "MOST_RECORDS", 2)
    for _ in range(5):
        expirer.age(make_record(api(), session["id"]), days=3)
    keep_for(api(), 2)
    job_id = expirer.enqueue_due()
    assert job_id is not None
    with database.transaction(tenant.id) as opened:
        claimed = leases.claim(opened, tenant.id, job_id)
        assert claimed is not None
        step = expiry.step(opened, tenant.id, claimed)
        assert steps.advance(opened, claimed, step)
    with pytest.raises(Killed), database.transaction(tenant.id) as opened:
        _step_and_die(opened, tenant.id, job_id)
    assert len(expirer.bundles()) == 3
    assert expirer.finish(job_id) == {"expired": 5}
