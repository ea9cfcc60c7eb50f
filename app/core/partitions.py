"""Weekly partitions of events, deliveries and attempts: made ahead, dropped by retention.

Ids are time, so a partition is a range of ids, and dropping one costs the same for ten rows as for
ten million. Weeks begin on Monday, 00:00 UTC.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app import ids

PARENTS = ("events", "deliveries", "delivery_attempts")
WEEK = timedelta(days=7)
# A service without a running scheduler must still have partitions for new rows for weeks.
WEEKS_AHEAD = 5

_MAKE = text("SELECT make_history_partition(:parent, :lower, :upper)")


def week_of(moment: datetime) -> datetime:
    """Return the Monday, 00:00, that begins the week of `moment` (aware, in UTC)."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=midnight.weekday())


def make_partitions(connection: Connection, now: datetime) -> int:
    """Create the partitions of last week, this week and the weeks ahead; return how many were new.

    Last week's is for hosts whose clock is behind the database's.
    """
    made = 0
    first = week_of(now) - WEEK
    for week in range(WEEKS_AHEAD + 2):
        lower = ids.earliest_at(first + week * WEEK)
        upper = ids.earliest_at(first + (week + 1) * WEEK)
        for parent in PARENTS:
            made += bool(
                connection.scalar(_MAKE, {"parent": parent, "lower": lower, "upper": upper})
            )
    return made


def keep(connection: Connection, days: int) -> None:
    """Set the database's own minimum retention in `days`; only the schema's owner may."""
    connection.execute(text("UPDATE history_policy SET days = :days"), {"days": days})


@dataclass(frozen=True)
class Partition:
    """One week of one table: ids from `lower` (inclusive) to `upper` (exclusive)."""

    parent: str
    name: str
    lower: UUID
    upper: UUID


_PARTITIONS = text("""
SELECT parent.relname, child.relname FROM pg_inherits
  JOIN pg_class AS parent ON parent.oid = inhparent
  JOIN pg_class AS child ON child.oid = inhrelid
 WHERE parent.relname = ANY (:parents) AND child.relkind = 'r'
 ORDER BY child.relname
""")

_DAYS_KEPT = text("SELECT days FROM history_policy")
_DROP = text("SELECT drop_history_partition(:parent, :lower)")
_REFUSED = (psycopg.errors.ObjectInUse, psycopg.errors.ObjectNotInPrerequisiteState)


def outlived(session: Session, now: datetime, history_days: int) -> list[Partition]:
    """Return the partitions whose rows are all older than `history_days`, oldest first.

    A longer HISTORY_DAYS recorded by the last release (`keep`) takes precedence.
    """
    days = max(history_days, session.execute(_DAYS_KEPT).scalar_one())
    limit = ids.earliest_at(now - timedelta(days=days))
    return [partition for partition in _existing(session) if partition.upper <= limit]


def begins_at(session: Session) -> datetime:
    """Return the moment at which the kept history begins."""
    return min(ids.made_at(each.lower) for each in _existing(session))


class PartitionKept(Exception):
    """The database refuses to drop a partition: it has open deliveries, or is too young."""


def drop(session: Session, partition: Partition) -> None:
    """Drop a partition; a refusal or a missed lock ends the caller's transaction.

    Waits at most 2 s for the lock, as queries queue behind it; then raises the database's error.
    Raises `PartitionKept` for a partition that has open deliveries or is younger than the last
    release's HISTORY_DAYS.
    """
    session.execute(text("SET LOCAL lock_timeout = '2s'"))
    try:
        session.execute(_DROP, {"parent": partition.parent, "lower": partition.lower})
    except DBAPIError as error:
        if isinstance(error.orig, _REFUSED):
            raise PartitionKept(str(error.orig)) from error
        raise


def _existing(session: Session) -> list[Partition]:
    found = session.execute(_PARTITIONS, {"parents": list(PARENTS)})
    return [_partition(parent, name) for parent, name in found]


def _partition(parent: str, name: str) -> Partition:
    """Read a partition's week from its name: the first 48 bits of its lowest id are its time."""
    lower = UUID(int=int(name.rpartition("_")[2], 16) << 80)
    return Partition(parent, name, lower, ids.earliest_at(ids.made_at(lower) + WEEK))
