"""Weekly partitions: made ahead, dropped when old, kept while something in them is open."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app import clock, ids, migrations
from app.core import partitions, tenants
from app.core.delivery import claims
from app.core.delivery.lanes import lanes
from app.core.replay import replay
from app.database import Database
from app.errors import Unavailable
from app.settings import Settings
from tests.support.database.databases import waiting
from tests.support.faults import until
from tests.support.secrets import MASTER_KEYS
from tests.support.workers.outbox import Outbox

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OLD = clock.now() - timedelta(days=200)


def test_partitions_are_made_ahead_and_a_second_run_makes_none(fresh_database: Database) -> None:
    with fresh_database.across_tenants() as session:
        later = clock.now() + timedelta(weeks=3)
        assert partitions.make_partitions(session.connection(), later, 90) == 3 * len(
            partitions.PARENTS
        )
        assert partitions.make_partitions(session.connection(), later, 90) == 0


def test_a_partition_goes_once_all_in_it_is_older_than_the_history(
    fresh_database: Database,
) -> None:
    with fresh_database.across_tenants() as session:
        week = partitions.week_of(clock.now())
        just_before = week + timedelta(days=7 + 90) - timedelta(seconds=1)
        assert _lowers(session, just_before) == {week - partitions.WEEK}
        assert _lowers(session, week + timedelta(days=7 + 90)) == {week - partitions.WEEK, week}


def test_a_partition_with_an_open_delivery_stays_with_its_event(fresh_database: Database) -> None:
    tenant_id = _tenant_with_one_delivery(fresh_database, OLD)
    assert _drop_all(fresh_database) == {"earlier_attempts"}
    _finish(fresh_database, tenant_id)
    assert _drop_all(fresh_database) == {"stored_events", "ended_deliveries"}
    with fresh_database.transaction(tenant_id) as session:
        assert session.scalar(text("SELECT count(*) FROM deliveries")) == 0


def test_an_event_that_is_being_replayed_while_its_partition_goes_stays(
    fresh_database: Database, settings: Settings
) -> None:
    outbox = Outbox.of_new_tenant(fresh_database, settings)
    webhook, delivery = _delivered(outbox)
    went: list[bool] = []
    with fresh_database.transaction(outbox.tenant_id) as session:
        replay.replay(session, outbox.caller, webhook, delivery)
        pruning = threading.Thread(
            target=lambda: went.append("stored_events" in _drop_all(fresh_database))
        )
        pruning.start()
        # It gives up after two seconds, which a slow machine may let pass unseen.
        until(lambda: went or waiting(fresh_database.engine))
    pruning.join()
    assert went == [False]
    assert len(outbox.rows("SELECT id FROM events")) == 1


def _delivered(outbox: Outbox) -> tuple[UUID, UUID]:
    """Make a delivery that succeeded long ago; return the ids of its webhook and its own."""
    _make_partition(outbox.database, OLD)
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


@pytest.mark.parametrize("parent", ["stored_events", "ended_deliveries"])
def test_the_database_itself_keeps_what_has_open_deliveries(
    fresh_database: Database, parent: str
) -> None:
    tenant_id = _tenant_with_one_delivery(fresh_database, OLD)
    # The caller's own tenant is not the one whose delivery is open.
    with refused("open deliveries need"):
        _drop(fresh_database, parent, OLD, as_tenant=ids.new())
    _finish(fresh_database, tenant_id)
    _drop(fresh_database, parent, OLD, as_tenant=ids.new())


@pytest.mark.parametrize("parent", partitions.PARENTS)
def test_the_database_itself_keeps_what_is_younger_than_the_history(
    fresh_database: Database, parent: str
) -> None:
    young = clock.now() - timedelta(days=80)
    _make_partition(fresh_database, young)
    with refused("younger than HISTORY_DAYS"):
        _drop(fresh_database, parent, young)


def test_how_long_that_is_only_a_release_can_say(
    fresh_database: Database, settings: Settings
) -> None:
    young = clock.now() - timedelta(days=80)
    _make_partition(fresh_database, young)
    with (
        pytest.raises(DBAPIError, match="permission denied"),
        fresh_database.across_tenants() as session,
    ):
        session.execute(text("UPDATE history_policy SET days = 1"))
    url = make_url(settings.database_admin_url).set(database=fresh_database.engine.url.database)
    admin_url = url.render_as_string(hide_password=False)
    migrations.migrate(admin_url, app_url=settings.database_url, history_days=30)
    _drop(fresh_database, "stored_events", young)


def test_a_worker_told_of_fewer_days_than_the_release_keeps_those_of_the_release(
    fresh_database: Database,
) -> None:
    young = clock.now() - timedelta(days=80)
    _make_partition(fresh_database, young)
    with fresh_database.across_tenants() as session:
        assert partitions.outlived(session, clock.now(), 30) == []
        assert partitions.outlived(session, clock.now() + timedelta(days=20), 30) != []


def test_a_partition_that_holds_more_than_its_week_is_as_old_as_its_youngest_row(
    fresh_database: Database,
) -> None:
    lower = ids.earliest_at(partitions.week_of(OLD))
    upper = ids.earliest_at(clock.now() - timedelta(days=30))
    with fresh_database.across_tenants() as session:
        session.execute(
            text("SELECT make_history_partition('stored_events', :lower, :upper)"),
            {"lower": lower, "upper": upper},
        )
    with refused("younger than HISTORY_DAYS"):
        _drop(fresh_database, "stored_events", OLD)


@pytest.mark.parametrize("weeks", [0, partitions.WEEKS_AHEAD])
def test_a_release_leaves_room_for_weeks_without_a_scheduler(
    fresh_database: Database, weeks: int
) -> None:
    moment = clock.now() + timedelta(weeks=weeks)
    tenant_id, _ = tenants.create(fresh_database, MASTER_KEYS, "later")
    with fresh_database.transaction(tenant_id) as session:
        session.execute(
            text(
                "INSERT INTO stored_events (tenant_id, id, type, payload, decisions)"
                " VALUES (:t, :id, 'x', '', '')"
            ),
            {"t": tenant_id, "id": ids.new(moment)},
        )


@contextmanager
def refused(why: str) -> Iterator[None]:
    with pytest.raises(Unavailable) as refusal:
        yield
    assert why in str(refusal.value.__cause__)


def _lowers(session: Session, now: datetime) -> set[datetime]:
    return {ids.made_at(each.lower) for each in partitions.outlived(session, now, 90)}


def _make_partition(database: Database, week: datetime) -> None:
    with database.across_tenants() as session:
        for parent in partitions.PARENTS:
            lower = ids.earliest_at(partitions.week_of(week))
            upper = ids.earliest_at(partitions.week_of(week) + partitions.WEEK)
            session.execute(
                text("SELECT make_history_partition(:parent, :lower, :upper)"),
                {"parent": parent, "lower": lower, "upper": upper},
            )


def _drop(database: Database, parent: str, week: datetime, as_tenant: UUID | None = None) -> None:
    """Ask the database as whatever else has the service's role could."""
    with database.transaction(as_tenant or ids.new()) as session:
        session.execute(
            text("SELECT drop_history_partition(:parent, :lower)"),
            {"parent": parent, "lower": ids.earliest_at(partitions.week_of(week))},
        )


def _drop_all(database: Database) -> set[str]:
    """Drop what can go; return the tables that lost a partition."""
    with database.across_tenants() as session:
        outlived = partitions.outlived(session, clock.now(), 90)
    gone = set()
    for partition in outlived:
        with suppress(partitions.PartitionKept, Unavailable), database.across_tenants() as session:
            partitions.drop(session, partition)
            gone.add(partition.parent)
    return gone


def _finish(database: Database, tenant_id: UUID) -> None:
    with database.transaction(tenant_id) as session:
        session.execute(
            text(
                "WITH gone AS (DELETE FROM open_deliveries RETURNING *)"
                " INSERT INTO ended_deliveries (tenant_id, id, webhook_id, event_id, event_type,"
                " kind, priority, attempts, status, created_at)"
                " SELECT tenant_id, id, webhook_id, event_id, event_type, kind, priority, 1,"
                " 'succeeded', created_at FROM gone"
            )
        )


def _tenant_with_one_delivery(database: Database, at: datetime) -> UUID:
    _make_partition(database, at)
    tenant_id, _ = tenants.create(database, MASTER_KEYS, "history")
    event_id, delivery_id = ids.new(at), ids.new(at)
    with database.transaction(tenant_id) as session:
        session.execute(
            text(
                "INSERT INTO stored_events (tenant_id, id, type, payload, decisions)"
                " VALUES (:t, :e, 'x', '', '')"
            ),
            {"t": tenant_id, "e": event_id},
        )
        session.execute(
            text(
                "INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type,"
                " kind, priority, fresh, next_attempt_at)"
                " VALUES (:t, :d, :d, :e, 'x', 'event', 1, true, now())"
            ),
            {"t": tenant_id, "e": event_id, "d": delivery_id},
        )
    return tenant_id


@pytest.mark.parametrize("days", [1, 90, 365, 1095, 3650])
def test_however_long_history_is_its_partitions_are_few(days: int) -> None:
    spans = timedelta(days=days) / partitions.length(days)
    assert spans <= 13
    assert partitions.length(days) <= max(partitions.WEEK, timedelta(days=days) / 10)


def test_a_claim_opens_no_partition_but_that_of_its_events(
    fresh_database: Database, settings: Settings
) -> None:
    outbox = Outbox.of_new_tenant(fresh_database, settings)
    webhook = outbox.webhook()
    outbox.emit()
    before = _partitions_locked_by_a_claim(outbox, webhook)
    for weeks in range(20, 40):
        _make_partition(fresh_database, clock.now() - timedelta(weeks=weeks))
    outbox.emit()
    assert _partitions_locked_by_a_claim(outbox, webhook) == before == {"stored_events": 1}


def _partitions_locked_by_a_claim(outbox: Outbox, webhook: UUID) -> dict[str, int]:
    """Claim all; return how many partitions of each table that locked."""
    with outbox.database.transaction(outbox.tenant_id) as session:
        lane = lanes.load(session, outbox.tenant_id, webhook)
        assert lane is not None
        assert claims.claim(session, lane, 10)()
        found = session.execute(
            text(
                "SELECT inhparent::regclass::text, count(DISTINCT inhrelid) FROM pg_inherits"
                "  JOIN pg_locks ON relation = inhrelid AND pid = pg_backend_pid()"
                "  JOIN pg_class ON oid = inhparent AND relkind = 'p' GROUP BY 1"
            )
        )
        return {row[0]: row[1] for row in found}
