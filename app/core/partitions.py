"""Partitions of events, ended deliveries and attempts: made ahead, dropped by retention.

Ids are time, so a partition is a range of ids, and dropping one costs the same for ten rows as for
ten million. It has a week for each 90 days of HISTORY_DAYS: a query of all history opens some
twenty, however long that is. The first begins on a Monday, 00:00 UTC.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app import ids

PARENTS = ("stored_events", "ended_deliveries", "earlier_attempts")
WEEK = timedelta(days=7)
# A service without a running scheduler must still have partitions for new rows for weeks.
WEEKS_AHEAD = 5
_DAYS_A_WEEK = 90

_MAKE = text("SELECT make_history_partition(:parent, :lower, :upper)")


def week_of(moment: datetime) -> datetime:
    """Return the Monday, 00:00, that begins the week of `moment` (aware, in UTC)."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=midnight.weekday())


def length(history_days: int) -> timedelta:
    """Return how long a new partition is for so many days of history: whole weeks."""
    return math.ceil(history_days / _DAYS_A_WEEK) * WEEK


def make_partitions(connection: Connection, now: datetime, history_days: int) -> int:
    """Create the partitions from last week to five weeks ahead; return how many were new.

    Last week's is for hosts whose clock is behind the database's. New ones follow those there are.
    """
    made = 0
    ends = {parent: week_of(now) - WEEK for parent in PARENTS}
    for parent, existing in groupby(_existing(connection), lambda each: each.parent):
        ends[parent] = max(ends[parent], *(ids.made_at(each.upper) for each in existing))
    for parent, begins in ends.items():
        lower = begins
        while lower < week_of(now) + (WEEKS_AHEAD + 1) * WEEK:
            upper = lower + length(history_days)
            bounds = {"lower": ids.earliest_at(lower), "upper": ids.earliest_at(upper)}
            made += bool(connection.scalar(_MAKE, {"parent": parent, **bounds}))
            lower = upper
    return made


def keep(connection: Connection, days: int) -> None:
    """Set the database's own minimum retention in `days`; only the schema's owner may."""
    connection.execute(text("UPDATE history_policy SET days = :days"), {"days": days})


@dataclass(frozen=True)
class Partition:
    """A part of one table: ids from `lower` (inclusive) to `upper` (exclusive)."""

    parent: str
    name: str
    lower: UUID
    upper: UUID


_PARTITIONS = text(r"""
SELECT parent.relname, child.relname, bound[1]::uuid, bound[2]::uuid FROM pg_inherits
  JOIN pg_class AS parent ON parent.oid = inhparent
  JOIN pg_class AS child ON child.oid = inhrelid
 CROSS JOIN regexp_match(pg_get_expr(child.relpartbound, child.oid),
                         $$FROM \('([^']+)'\) TO \('([^']+)'\)$$) AS bound
 WHERE parent.relname = ANY (:parents) AND child.relkind = 'r'
 ORDER BY parent.relname, bound[1]::uuid
""")

_DAYS_KEPT = text("SELECT days FROM history_policy")
_DROP = text("SELECT drop_history_partition(:parent, :lower)")
_REFUSED = (psycopg.errors.ObjectInUse, psycopg.errors.ObjectNotInPrerequisiteState)


def outlived(session: Session, now: datetime, history_days: int) -> list[Partition]:
    """Return the partitions whose rows are all older than `history_days`.

    A longer HISTORY_DAYS recorded by the last release (`keep`) takes precedence.
    """
    days = max(history_days, session.execute(_DAYS_KEPT).scalar_one())
    limit = ids.earliest_at(now - timedelta(days=days))
    return [partition for partition in _existing(session) if partition.upper <= limit]


def begins_at(session: Session) -> datetime:
    """Return the moment at which the kept history begins."""
    return min(ids.made_at(each.lower) for each in _existing(session))


class PartitionKept(Exception):
    """The database refuses to drop a partition: open deliveries need it, or it is too young."""


def drop(session: Session, partition: Partition) -> None:
    """Drop a partition; a refusal or a missed lock ends the caller's transaction.

    Waits at most 2 s for the lock, as queries queue behind it; then raises the database's error.
    Raises `PartitionKept` for a partition that open deliveries need, or that is younger than the
    last release's HISTORY_DAYS.
    """
    session.execute(text("SET LOCAL lock_timeout = '2s'"))
    try:
        session.execute(_DROP, {"parent": partition.parent, "lower": partition.lower})
    except DBAPIError as error:
        if isinstance(error.orig, _REFUSED):
            raise PartitionKept(str(error.orig)) from error
        raise


def _existing(session: Session | Connection) -> list[Partition]:
    found = session.execute(_PARTITIONS, {"parents": list(PARENTS)})
    return [Partition(*row) for row in found]
