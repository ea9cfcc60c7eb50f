"""Weekly partitions: made ahead, dropped when old, kept while something in them is open."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app import clock, ids
from app.core import history, tenants
from app.database import Database
from tests.secrets import MASTER_KEYS

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def test_weeks_begin_on_monday_at_midnight_utc() -> None:
    assert history.week_of(NOW) == datetime(2026, 11, 16, tzinfo=UTC)
    assert history.week_of(datetime(2026, 11, 16, tzinfo=UTC)) == datetime(2026, 11, 16, tzinfo=UTC)


def test_partitions_are_made_ahead_and_a_second_run_makes_none(fresh_database: Database) -> None:
    with fresh_database.across_tenants() as session:
        later = clock.now() + timedelta(weeks=3)
        assert history.make_partitions(session.connection(), later) == 3 * len(history.PARENTS)
        assert history.make_partitions(session.connection(), later) == 0


def test_a_partition_goes_once_all_in_it_is_older_than_the_history(
    fresh_database: Database,
) -> None:
    with fresh_database.across_tenants() as session:
        week = history.week_of(clock.now())
        just_before = week + timedelta(days=7 + 90) - timedelta(seconds=1)
        assert _lowers(session, just_before) == {week - history.WEEK}
        assert _lowers(session, week + timedelta(days=7 + 90)) == {week - history.WEEK, week}


def test_a_partition_with_an_open_delivery_stays_with_its_event(fresh_database: Database) -> None:
    tenant_id = _tenant_with_one_delivery(fresh_database)
    much_later = clock.now() + timedelta(days=200)
    assert not _drop_all(fresh_database, much_later) & {"events", "deliveries"}

    with fresh_database.transaction(tenant_id) as session:
        session.execute(
            text(
                "UPDATE deliveries SET status = 'succeeded', finished_at = clock_timestamp(),"
                " next_attempt_at = NULL"
            )
        )
    assert {"events", "deliveries"} <= _drop_all(fresh_database, much_later)
    with fresh_database.transaction(tenant_id) as session:
        assert session.scalar(text("SELECT count(*) FROM deliveries")) == 0


def test_rows_of_this_week_always_find_a_partition(fresh_database: Database) -> None:
    _tenant_with_one_delivery(fresh_database)


@pytest.mark.parametrize("weeks", [0, history.WEEKS_AHEAD])
def test_a_release_leaves_room_for_weeks_without_a_scheduler(
    fresh_database: Database, weeks: int
) -> None:
    moment = clock.now() + timedelta(weeks=weeks)
    tenant_id, _ = tenants.create(fresh_database, MASTER_KEYS, "later")
    with fresh_database.transaction(tenant_id) as session:
        session.execute(
            text(
                "INSERT INTO events (tenant_id, id, type, payload, decisions)"
                " VALUES (:t, :id, 'x', '', '')"
            ),
            {"t": tenant_id, "id": ids.new(moment)},
        )


def _lowers(session: Session, now: datetime) -> set[datetime]:
    return {ids.made_at(each.lower) for each in history.outlived(session, now, 90)}


def _drop_all(database: Database, now: datetime) -> set[str]:
    """Drop what can go; return the tables that lost this week's partition."""
    this_week = history.week_of(clock.now())
    gone = set()
    with database.across_tenants() as session:
        outlived = history.outlived(session, now, 90)
    for partition in outlived:
        with database.across_tenants() as session:
            if history.drop(session, partition) and ids.made_at(partition.lower) == this_week:
                gone.add(partition.parent)
    return gone


def _tenant_with_one_delivery(database: Database) -> UUID:
    tenant_id, _ = tenants.create(database, MASTER_KEYS, "history")
    event_id, delivery_id = ids.new(), ids.new()
    with database.transaction(tenant_id) as session:
        session.execute(
            text(
                "INSERT INTO events (tenant_id, id, type, payload, decisions)"
                " VALUES (:t, :e, 'x', '', '')"
            ),
            {"t": tenant_id, "e": event_id},
        )
        session.execute(
            text(
                "INSERT INTO deliveries (tenant_id, id, webhook_id, event_id, event_type, kind,"
                " priority, next_attempt_at) VALUES (:t, :d, :d, :e, 'x', 'event', 1, now())"
            ),
            {"t": tenant_id, "e": event_id, "d": delivery_id},
        )
    return tenant_id
