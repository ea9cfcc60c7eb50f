"""Dropping history beside replays of it: no delivery is left without its event."""

import threading
from datetime import timedelta
from uuid import UUID

from sqlalchemy import text

from app import clock, ids
from app.core import partitions
from app.core.partitions import Partition
from app.core.replay import replay
from app.database import Database
from app.errors import Unavailable
from app.settings import Settings
from tests.support.database.databases import waiting
from tests.support.faults import until
from tests.support.workers.outbox import Outbox

OLD = clock.now() - timedelta(days=200)


def test_an_event_that_is_being_replayed_while_its_partition_goes_stays(
    fresh_database: Database, settings: Settings
) -> None:
    outbox = Outbox.of_new_tenant(fresh_database, settings)
    webhook, delivery = _delivered(outbox)
    went: list[bool] = []
    with fresh_database.transaction(outbox.tenant_id) as session:
        replay.replay(session, outbox.caller, webhook, delivery)
        pruning = threading.Thread(
            target=lambda: went.append(_drop(fresh_database, _week_of_the_event(fresh_database)))
        )
        pruning.start()
        # It gives up after two seconds, which a slow machine may let pass unseen.
        until(lambda: went or waiting(fresh_database.engine))
    pruning.join()
    assert went == [False]
    assert len(outbox.rows("SELECT id FROM events")) == 1


def _delivered(outbox: Outbox) -> tuple[UUID, UUID]:
    """Make a delivery that succeeded long ago; return the ids of its webhook and its own."""
    with outbox.database.across_tenants() as session:
        for parent in partitions.PARENTS:
            lower = partitions.week_of(OLD)
            session.execute(
                text("SELECT make_history_partition(:parent, :lower, :upper)"),
                {
                    "parent": parent,
                    "lower": ids.earliest_at(lower),
                    "upper": ids.earliest_at(lower + partitions.WEEK),
                },
            )
    webhook, old = outbox.webhook(), ids.new(OLD)
    outbox.emit()
    outbox.run("UPDATE stored_events SET id = :old", old=old)
    outbox.run(
        "WITH gone AS (DELETE FROM open_deliveries RETURNING *)"
        " INSERT INTO ended_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind,"
        " priority, sequence, attempts, status, created_at)"
        " SELECT tenant_id, :old, webhook_id, :old, event_type, kind, priority, 1, 1, 'succeeded',"
        " created_at FROM gone",
        old=old,
    )
    return webhook, old


def _week_of_the_event(database: Database) -> Partition:
    with database.across_tenants() as session:
        week = partitions.week_of(
            ids.made_at(session.execute(text("SELECT id FROM events")).scalar_one())
        )
        outlived = partitions.outlived(session, clock.now(), 90)
    (found,) = (
        each
        for each in outlived
        if each.parent == "stored_events" and ids.made_at(each.lower) == week
    )
    return found


def _drop(database: Database, partition: Partition) -> bool:
    try:
        with database.across_tenants() as session:
            partitions.drop(session, partition)
    except (Unavailable, partitions.PartitionKept):
        return False
    return True
