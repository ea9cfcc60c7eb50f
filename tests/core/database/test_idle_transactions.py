"""A worker whose host is cut off in the middle of a transaction does not keep its locks for hours.

Nothing tells the server that such a client is gone: until TCP notices, its transaction stays open.
"""

import threading
from contextlib import suppress
from uuid import UUID

import pytest

from app.core.delivery.lanes import lanes
from app.database import Database, cursor
from app.errors import Unavailable
from app.settings import Settings
from tests.support.callers.api import FreshTenant
from tests.support.faults import LONG_ENOUGH, until
from tests.support.workers.outbox import Outbox


@pytest.mark.parametrize("opened", ["transaction", "raw_transaction"])
def test_a_lane_s_lock_is_free_again_when_its_holder_falls_silent(
    database: Database,
    settings: Settings,
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
    opened: str,
) -> None:
    webhook = Outbox(database, settings, tenant.id).webhook()
    monkeypatch.setattr(database, "idle_seconds", 2.0)
    locked, over = threading.Event(), threading.Event()
    silent = threading.Thread(
        target=_fall_silent, args=(database, opened, tenant.id, webhook, locked, over)
    )
    silent.start()
    assert locked.wait(LONG_ENOUGH)
    until(lambda: _can_lock(database, tenant.id, webhook))
    over.set()
    silent.join()


def test_a_lock_is_not_held_between_a_statement_and_its_result(
    database: Database, settings: Settings, tenant: FreshTenant
) -> None:
    """The server counts no silence before Sync: a host that is cut off then kept its locks."""
    webhook = Outbox(database, settings, tenant.id).webhook()
    with database.raw_transaction(tenant.id) as silent:
        cursor(silent).execute("SELECT FROM lanes WHERE webhook_id = %s FOR UPDATE", (webhook,))
        assert _can_lock(database, tenant.id, webhook)


def _can_lock(database: Database, tenant_id: UUID, webhook: UUID) -> bool:
    try:
        with database.transaction(tenant_id) as session:
            return lanes.load(session, tenant_id, webhook) is not None
    except Unavailable:
        return False


def _fall_silent(
    database: Database,
    opened: str,
    tenant_id: UUID,
    webhook: UUID,
    locked: threading.Event,
    over: threading.Event,
) -> None:
    with suppress(Unavailable), getattr(database, opened)(tenant_id) as session:
        lanes.load(session, tenant_id, webhook)
        locked.set()
        over.wait(2 * LONG_ENOUGH)
