"""Which tenants are due, and that one worker of many claims each."""

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.core.digests import schedule
from app.core.health import gauges
from tests.jobs.digesting import Desk, Tenant, due_tenants, listed
from tests.support.faults import at_once


def test_of_many_that_see_a_tenant_due_one_claims_it(desk: Desk, tenant: Tenant) -> None:
    tenant.find_settled()
    at_once(6, lambda _: desk.tick())
    desk.tick()
    assert tenant.statuses() == ["pending"]
    assert len(desk.due_jobs()) == 1
    desk.work()
    desk.tick()
    assert tenant.statuses() == ["sent"]


def test_the_digest_of_a_suspended_tenant_is_not_late(desk: Desk, tenant: Tenant) -> None:
    def oldest() -> float:
        with desk.runtime.database.across_tenants() as session:
            return gauges.read_totals(session)["oldest_digest_seconds"]

    tenant.find_settled()
    desk.tick()
    assert tenant.statuses() == ["pending"]
    desk.run("UPDATE tenants SET suspended_at = clock_timestamp() WHERE id = :id", id=tenant.id)
    desk.wait(3)
    assert oldest() == 0, "nothing is wrong with the mail server"
    desk.run("UPDATE tenants SET suspended_at = NULL WHERE id = :id", id=tenant.id)
    assert 3 * 3600 <= oldest() < 3 * 3600 + 100


def test_a_suspended_tenant_is_not_due(desk: Desk, tenant: Tenant) -> None:
    found = tenant.find_settled()
    desk.run("UPDATE tenants SET suspended_at = clock_timestamp() WHERE id = :id", id=tenant.id)
    desk.tick()
    assert tenant.statuses() == []
    desk.run("UPDATE tenants SET suspended_at = NULL WHERE id = :id", id=tenant.id)
    assert listed(*desk.send()) == found


def test_a_digest_whose_job_has_died_gets_another(desk: Desk, tenant: Tenant) -> None:
    found = tenant.find_settled()
    desk.tick()
    desk.run(
        "UPDATE jobs SET status = 'dead', finished_at = clock_timestamp() WHERE tenant_id = :id",
        id=tenant.id,
    )
    assert listed(*desk.send()) == found


def test_a_thousand_at_once_and_the_rest_a_minute_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "AT_ONCE", 2)
    due_tenants(desk, 3)
    assert len(desk.send()) == 2
    assert len(desk.send()) == 1


def test_a_tenant_that_cannot_be_claimed_delays_no_other(desk: Desk) -> None:
    stuck, *others = due_tenants(desk, 4)
    row = text("SELECT FROM tenants WHERE id = :id FOR NO KEY UPDATE")
    key = text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))")
    with desk.owner.begin() as somebody:
        somebody.execute(row, {"id": stuck.id})
        with capture_logs() as said:
            desk.tick()
        assert said == [], "whoever waits for the lock gives up in the end, and says so"
    assert [each.statuses() for each in (stuck, *others)] == [[], *[["pending"]] * 3]
    desk.tick()
    (open_one,) = stuck.digests()
    desk.run("DELETE FROM jobs")
    desk.run("DELETE FROM digests WHERE tenant_id <> :id", id=stuck.id)
    with desk.owner.begin() as somebody:
        somebody.execute(key, {"key": f"{stuck.id}:digest:{open_one['id']}"})
        desk.tick()
    assert [each.statuses() for each in others] == [["pending"]] * 3
