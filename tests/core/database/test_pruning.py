"""Dropping history beside people who send it again: nothing is left without its event."""

import threading
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from app import clock, ids
from app.core import partitions, tenants
from app.core.callers import Caller, Role
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.core.partitions import Partition
from app.core.replay import replay
from app.core.webhooks import webhooks
from app.database import Database
from app.errors import Unavailable
from app.settings import Settings
from tests.support.faults import until
from tests.support.secrets import MASTER_KEYS

OLD = clock.now() - timedelta(days=200)


@pytest.fixture
def caller(fresh_database: Database) -> Caller:
    tenant_id, _ = tenants.create(fresh_database, MASTER_KEYS, "pruned")
    return Caller(tenant_id, ids.new(), Role.ADMIN, None, "test")


def test_an_event_that_is_being_replayed_while_its_partition_goes_stays(
    fresh_database: Database, settings: Settings, caller: Caller
) -> None:
    webhook, delivery = _delivered(fresh_database, settings, caller)
    went: list[bool] = []
    with fresh_database.transaction(caller.tenant_id) as session:
        replay.replay(session, caller, webhook, delivery)
        pruning = threading.Thread(
            target=lambda: went.append(_drop(fresh_database, _week_of_the_event(fresh_database)))
        )
        pruning.start()
        # It gives up after two seconds, which a slow machine may let pass unseen.
        until(lambda: went or _somebody_waits_for_a_lock(fresh_database))
    pruning.join()
    assert went == [False]
    with fresh_database.transaction(caller.tenant_id) as session:
        assert session.scalar(text("SELECT count(*) FROM events")) == 1


def _delivered(database: Database, settings: Settings, caller: Caller) -> tuple[UUID, UUID]:
    with database.across_tenants() as session:
        partitions.make_partitions(session.connection(), OLD)
    with database.transaction(caller.tenant_id) as session:
        made, _ = webhooks.create(session, caller, settings, {"url": "http://127.0.0.1:9/"})
        events.emit(session, caller.tenant_id, [NewEvent("finding.created", {}, clock.now())])
        old = {"old": ids.new(OLD)}
        session.execute(text("UPDATE events SET id = :old"), old)
        session.execute(
            text(
                "UPDATE deliveries SET status = 'succeeded', finished_at = clock_timestamp(),"
                " next_attempt_at = NULL, id = :old, event_id = :old"
            ),
            old,
        )
        return made.id, old["old"]


def _week_of_the_event(database: Database) -> Partition:
    with database.across_tenants() as session:
        week = partitions.week_of(
            ids.made_at(session.execute(text("SELECT id FROM events")).scalar_one())
        )
        outlived = partitions.outlived(session, clock.now(), 90)
    (found,) = (
        each for each in outlived if each.parent == "events" and ids.made_at(each.lower) == week
    )
    return found


def _drop(database: Database, partition: Partition) -> bool:
    try:
        with database.across_tenants() as session:
            partitions.drop(session, partition)
    except (Unavailable, partitions.PartitionKept):
        return False
    return True


def _somebody_waits_for_a_lock(database: Database) -> bool:
    with database.across_tenants() as session:
        return bool(
            session.scalar(
                text(
                    "SELECT EXISTS (SELECT 1 FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock')"
                )
            )
        )
