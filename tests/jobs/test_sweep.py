"""The sweep finds whatever is due and was not rung, and rings each only every two seconds."""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text

from app import clock, ids
from app.core import jobs, tenants
from app.core.callers import Caller, Role
from app.core.delivery import events, lanes, sweeping
from app.core.delivery.events import NewEvent
from app.core.webhook import webhooks
from app.database import Database
from app.settings import Settings


class Place:
    """A tenant with webhooks in a database of its own, where the sweep sees nobody else."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.tenant_id, _ = tenants.create(database, "swept")

    def webhook(self) -> UUID:
        caller = Caller(self.tenant_id, ids.new(), Role.ADMIN, None, "test")
        with self.database.transaction(self.tenant_id) as session:
            wanted = {"url": "http://127.0.0.1:9/"}
            return webhooks.create(session, caller, self.settings, wanted)[0].id

    def emit(self) -> None:
        with self.database.transaction(self.tenant_id) as session:
            events.emit(session, self.tenant_id, [NewEvent("finding.created", {}, clock.now())])

    def sweep(self) -> set[UUID]:
        with self.database.across_tenants() as session:
            return {webhook for _, webhook in sweeping.due_lanes(session)}

    def run(self, sql: str, **values: Any) -> None:
        with self.database.transaction(self.tenant_id) as session:
            session.execute(text(sql), values)

    def forget_rings(self) -> None:
        self.run("UPDATE lanes SET ring_at = NULL")


@pytest.fixture
def place(fresh_database: Database, settings: Settings) -> Place:
    return Place(fresh_database, settings)


def test_rows_that_nobody_was_rung_for_are_found(place: Place) -> None:
    with_rows = {place.webhook() for _ in range(3)}
    place.emit()
    place.webhook()
    assert place.sweep() == with_rows


def test_nothing_due_rings_nobody(place: Place) -> None:
    place.webhook()
    assert place.sweep() == set()


def test_what_was_just_rung_is_not_rung_again(place: Place) -> None:
    webhook = place.webhook()
    place.emit()
    assert place.sweep() == {webhook}
    assert place.sweep() == set()
    place.forget_rings()
    assert place.sweep() == {webhook}


def test_numbered_rows_are_found_by_the_lane_s_own_time(place: Place) -> None:
    webhook = place.webhook()
    place.emit()
    with place.database.transaction(place.tenant_id) as session:
        lanes.number(session, place.tenant_id, webhook)
        assert lanes.reschedule(session, place.tenant_id, webhook)
    assert place.sweep() == {webhook}


def test_a_lane_waits_for_its_next_retry(place: Place) -> None:
    webhook = place.webhook()
    place.emit()
    place.run("UPDATE deliveries SET next_attempt_at = clock_timestamp() + interval '1 hour'")
    with place.database.transaction(place.tenant_id) as session:
        lanes.number(session, place.tenant_id, webhook)
        assert not lanes.reschedule(session, place.tenant_id, webhook)
    assert place.sweep() == set()


def test_a_paused_lane_is_rung_when_its_pause_ends(place: Place) -> None:
    webhook = place.webhook()
    place.run("UPDATE lanes SET paused_until = clock_timestamp() + interval '1 hour'")
    place.emit()
    assert place.sweep() == set()
    place.run("UPDATE lanes SET paused_until = clock_timestamp(), due_at = clock_timestamp()")
    assert place.sweep() == {webhook}


def test_due_jobs_are_found_and_waiting_or_leased_ones_are_not(place: Place) -> None:
    with place.database.transaction(place.tenant_id) as session:
        due, leased, later = (
            jobs.enqueue(session, place.tenant_id, kind="test", args={}).id for _ in range(3)
        )
        jobs.claim(session, place.tenant_id, leased)
    place.run(
        "UPDATE jobs SET run_at = clock_timestamp() + interval '1 hour' WHERE id = :id", id=later
    )
    with place.database.across_tenants() as session:
        assert [job for _, job in sweeping.due_jobs(session)] == [due]
    with place.database.across_tenants() as session:
        assert sweeping.due_jobs(session) == []
