"""When the next digest is due, and to whom: what is said before is what happens."""

from datetime import datetime, timedelta
from typing import Any

from app import ids
from app.core.digests import schedule
from app.database import database_now
from tests.jobs.digesting import ADDRESS, Desk, Tenant
from tests.support.servers.mail import Mood

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
