"""A lane's turn when the service itself is in trouble: what is not sent waits, and is not lost."""

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, text

from app import clock, ids
from app.core.callers import Caller, Role
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.core.webhooks import webhooks
from app.database import Database
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.settings import Settings
from jobs.delivery import lane_run
from jobs.delivery.lane_run import TURN_SECONDS, LaneRun
from jobs.process.runtime import Runtime
from tests.support.callers.api import FreshTenant
from tests.support.faults import LONG_ENOUGH, OwnValkey, until
from tests.support.servers.receivers import OK, Receiver, Request
from tests.support.workers.lanes import fill, has_answered


def test_no_post_starts_on_a_claim_that_a_stalled_database_has_made_old(
    settings: Settings,
    database: Database,
    tenant: FreshTenant,
    admin_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The worker looks at its webhook again before each POST.
    monkeypatch.setattr(lane_run, "RELOAD_SECONDS", 0.0)
    over = threading.Event()

    def stall(_: Request) -> bytes:
        if not over.is_set():
            over.set()
            locked = threading.Event()
            threading.Thread(target=_lock_webhooks, args=(admin_engine, locked)).start()
            locked.wait(LONG_ENOUGH)
        return OK

    with Receiver(stall) as receiver, _runtime(settings) as runtime:
        webhook = _webhook_with_two_events(runtime, tenant, receiver.url())
        with runtime.database.transaction(tenant.id) as session:
            has_answered(session, webhook.id)
        LaneRun(runtime, tenant.id, webhook.id).run()
        assert len(receiver.requests) == 1
    assert _states(database, tenant) == [("pending", 0), ("succeeded", 1)]


@pytest.mark.parametrize("over", [True, False])
def test_a_probe_whose_claim_took_long_is_sent_all_the_same(
    settings: Settings,
    database: Database,
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
    over: bool,
) -> None:
    # However soon the claim was made, it is too old: the worker looks at the lane again.
    monkeypatch.setattr(lane_run, "RELOAD_SECONDS", -1.0)
    with Receiver() as receiver, _runtime(settings) as runtime:
        webhook = _webhook_with_two_events(runtime, tenant, receiver.url())
        # The probe of a pause that is over, or what is urgent meanwhile.
        _pause(runtime, tenant, over=over)
        LaneRun(runtime, tenant.id, webhook.id).run()
        assert len(receiver.requests) == 1
    assert _states(database, tenant) == [("pending", 0), ("succeeded", 1)]


@pytest.mark.usefixtures("forgotten")
def test_rows_whose_secrets_cannot_be_opened_are_not_claimed(
    settings: Settings, tenant: FreshTenant
) -> None:
    lost = dataclasses.replace(settings, master_keys=MasterKeys.parse(MasterKeys.generate()))
    with Receiver() as receiver, _runtime(settings) as runtime, _runtime(lost) as worker:
        webhook = _webhook_with_two_events(runtime, tenant, receiver.url())
        with pytest.raises(CannotOpen):
            LaneRun(worker, tenant.id, webhook.id).run()
        assert _states(runtime.database, tenant) == [("pending", 0), ("pending", 0)]
        LaneRun(runtime, tenant.id, webhook.id).run()
        assert len(receiver.requests) == 2


@pytest.mark.parametrize("was_slow", [False, True])
def test_a_lane_without_room_is_passed_on_unless_it_is_slow_and_waits_for_the_sweep(
    settings: Settings, tenant: FreshTenant, own_valkey: OwnValkey, was_slow: bool
) -> None:
    with Receiver() as receiver, _runtime(settings, own_valkey) as runtime:
        webhook = _webhook_with_two_events(runtime, tenant, receiver.url())
        _set_slow(runtime, tenant, slow=was_slow)
        permits = fill(runtime.bulkhead)
        # The ring of their commit comes from another thread.
        until(lambda: own_valkey.client.llen("dramatiq:deliver"))
        own_valkey.client.flushall()
        LaneRun(runtime, tenant.id, webhook.id).run()
        assert receiver.requests == []
        assert own_valkey.client.llen("dramatiq:deliver") == (0 if was_slow else 1)
        own_valkey.client.delete("dramatiq:deliver")
        runtime.bell.ring_lanes([(tenant.id, webhook.id)])
        assert own_valkey.client.llen("dramatiq:deliver") == (0 if was_slow else 1)
        for permit in permits:
            runtime.bulkhead.release(permit)
        LaneRun(runtime, tenant.id, webhook.id).run()
        assert len(receiver.requests) == 2


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_slow_lane_whose_turn_ends_goes_behind_those_that_wait(
    settings: Settings, tenant: FreshTenant, own_valkey: OwnValkey, others_wait: bool
) -> None:
    with Receiver() as receiver, _runtime(settings, own_valkey) as runtime:
        webhook = _webhook_with_two_events(runtime, tenant, receiver.url())
        _set_slow(runtime, tenant, slow=True)
        if others_wait:
            runtime.bulkhead.release(fill(runtime.bulkhead)[0])
        LaneRun(runtime, tenant.id, webhook.id).run()
        assert len(receiver.requests) == 2
        with runtime.database.transaction(tenant.id) as session:
            assert session.scalar(text("SELECT ring_at IS NOT NULL FROM lanes")) is others_wait


def _set_slow(runtime: Runtime, tenant: FreshTenant, *, slow: bool) -> None:
    with runtime.database.transaction(tenant.id) as session:
        sql = "UPDATE lanes SET slow_at = CASE WHEN :slow THEN clock_timestamp() END"
        session.execute(text(sql), {"slow": slow})


def _pause(runtime: Runtime, tenant: FreshTenant, *, over: bool) -> None:
    """Pause the tenant's one lane: until now, or for an hour in which one delivery is urgent."""
    seconds = 0 if over else 3600
    pause = """
    UPDATE lanes SET pause_level = 1, paused_until = clock_timestamp() + :s * interval '1 second'
    """
    hurry = """
    UPDATE deliveries SET priority = 0 WHERE id = (SELECT id FROM deliveries ORDER BY id LIMIT 1)
    """
    with runtime.database.transaction(tenant.id) as session:
        session.execute(text(pause), {"s": seconds})
        if not over:
            session.execute(text(hurry))


def _lock_webhooks(engine: Engine, locked: threading.Event) -> None:
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE webhooks IN ACCESS EXCLUSIVE MODE"))
        locked.set()
        connection.execute(text("SELECT pg_sleep(:s)"), {"s": TURN_SECONDS + 1})


@contextmanager
def _runtime(settings: Settings, valkey: OwnValkey | None = None) -> Iterator[Runtime]:
    if valkey is not None:
        settings = dataclasses.replace(settings, redis_url=valkey.url)
    opened = Runtime.open(settings, threads=8)
    yield opened
    opened.close()


def _webhook_with_two_events(runtime: Runtime, tenant: FreshTenant, url: str) -> webhooks.Watched:
    caller = Caller(tenant.id, ids.new(), Role.ADMIN, None, "test")
    with runtime.database.transaction(tenant.id) as session:
        made, _ = webhooks.create(session, caller, runtime.settings, {"url": url})
        event = NewEvent("finding.created", {}, clock.now())
        events.emit(session, tenant.id, [event, event])
        return made


def _states(database: Database, tenant: FreshTenant) -> list[tuple[str, int]]:
    with database.transaction(tenant.id) as session:
        found = session.execute(text("SELECT status, attempts FROM deliveries ORDER BY status"))
        return [(status, attempts) for status, attempts in found]
