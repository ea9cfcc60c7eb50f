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
from app.core.webhook import webhooks
from app.lib.sealing import CannotOpen, MasterKeys
from app.settings import Settings
from jobs.lane_run import TURN_SECONDS, LaneRun
from jobs.runtime import Runtime
from tests.conftest import FreshTenant
from tests.receivers import OK, Receiver, Request


def test_no_post_starts_on_a_claim_that_a_stalled_database_has_made_old(
    settings: Settings, tenant: FreshTenant, admin_engine: Engine
) -> None:
    over = threading.Event()

    def stall(_: Request) -> bytes:
        if not over.is_set():
            over.set()
            locked = threading.Event()
            threading.Thread(target=_lock_webhooks, args=(admin_engine, locked)).start()
            locked.wait(5)
            # Long enough for the worker to look at its webhook again before the next POST.
            threading.Event().wait(1)
        return OK

    with Receiver(stall) as receiver, _runtime(settings) as runtime:
        webhook = _webhook_with_two_events(runtime, tenant, receiver.url())
        LaneRun(runtime, tenant.id, webhook.id).run()
        assert len(receiver.requests) == 1
    assert _states(runtime, tenant) == [("pending", 0), ("succeeded", 1)]


def test_rows_whose_secrets_cannot_be_opened_are_not_claimed(
    settings: Settings, tenant: FreshTenant
) -> None:
    lost = dataclasses.replace(settings, master_keys=MasterKeys.parse(MasterKeys.generate()))
    with Receiver() as receiver, _runtime(settings) as runtime, _runtime(lost) as worker:
        webhook = _webhook_with_two_events(runtime, tenant, receiver.url())
        with pytest.raises(CannotOpen):
            LaneRun(worker, tenant.id, webhook.id).run()
        assert _states(runtime, tenant) == [("pending", 0), ("pending", 0)]
        LaneRun(runtime, tenant.id, webhook.id).run()
        assert len(receiver.requests) == 2


def _lock_webhooks(engine: Engine, locked: threading.Event) -> None:
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE webhooks IN ACCESS EXCLUSIVE MODE"))
        locked.set()
        connection.execute(text("SELECT pg_sleep(:s)"), {"s": TURN_SECONDS + 1})


@contextmanager
def _runtime(settings: Settings) -> Iterator[Runtime]:
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


def _states(runtime: Runtime, tenant: FreshTenant) -> list[tuple[str, int]]:
    with runtime.database.transaction(tenant.id) as session:
        found = session.execute(text("SELECT status, attempts FROM deliveries ORDER BY status"))
        return [(status, attempts) for status, attempts in found]
