"""Which tenants are due, that one worker of many claims each, and when the next digest is due."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app import ids
from app.core.digests import schedule
from app.core.health import gauges
from app.database import database_now
from tests.jobs.digesting import ADDRESS, Desk, Tenant, due_tenants, listed
from tests.support.faults import at_once
from tests.support.servers.mail import Mood


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


_SLACK = timedelta(minutes=2)


def coming(desk: Desk, tenant: Tenant) -> tuple[dict[str, Any] | None, datetime]:
    """Return the next digest of a tenant, and the time by the database."""
    with desk.runtime.database.transaction(tenant.id) as session:
        found = schedule.next_digest(session, tenant.id, desk.settings.digest_settle)
        return found, database_now(session)


def due_in(desk: Desk, tenant: Tenant) -> timedelta | None:
    """Return in how long the next digest is due; None while nothing waits for it."""
    found, now = coming(desk, tenant)
    assert found is not None
    assert found["to"] == ADDRESS
    return None if found["due_at"] is None else datetime.fromisoformat(found["due_at"]) - now


def near(found: timedelta | None, hours: float) -> bool:
    return found is not None and abs(found - timedelta(hours=hours)) < _SLACK


def test_without_an_address_there_is_none(desk: Desk, tenant: Tenant) -> None:
    tenant.set_address(None)
    tenant.find()
    assert coming(desk, tenant)[0] is None


def test_it_is_due_once_its_oldest_finding_has_settled_and_a_day_after_the_last(
    desk: Desk, tenant: Tenant
) -> None:
    assert due_in(desk, tenant) is None
    tenant.find()
    assert near(due_in(desk, tenant), 0.25)
    desk.wait(0.3)
    assert near(due_in(desk, tenant), 0)
    assert len(desk.send()) == 1
    found, now = coming(desk, tenant)
    assert found is not None
    assert (found["due_at"], found["digest_id"]) == (None, None)
    assert near(datetime.fromisoformat(found["not_before"]) - now, 24)
    desk.wait(3)
    tenant.find()
    assert near(due_in(desk, tenant), 21)
    desk.wait(21.1)
    assert near(due_in(desk, tenant), 0)
    assert len(desk.send()) == 1


def test_one_that_is_open_is_due_when_its_job_is(desk: Desk, tenant: Tenant) -> None:
    tenant.find_settled()
    desk.postbox.taken(Mood.NO_RECIPIENT)
    desk.send()
    (digest,) = tenant.digests()
    found, _ = coming(desk, tenant)
    assert found is not None
    assert ids.read("dig", found["digest_id"]) == digest["id"]
    assert near(due_in(desk, tenant), 24)
    desk.wait(12)
    assert near(due_in(desk, tenant), 12)
    desk.wait(13)
    assert near(due_in(desk, tenant), 0)


def test_what_may_be_lost_or_was_refused_is_due_again_a_day_later(
    desk: Desk, tenant: Tenant
) -> None:
    for mood in (Mood.GONE_AFTER_DOT, Mood.NO_CONTENT):
        tenant.find_settled()
        desk.postbox.taken(mood)
        desk.send()
        desk.wait(0.01)
        desk.send()
        assert near(due_in(desk, tenant), 24.2 if mood is Mood.GONE_AFTER_DOT else 24)
        desk.wait(24.2)
        assert near(due_in(desk, tenant), 0)
