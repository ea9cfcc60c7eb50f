"""Deliveries of the past by the million, written straight into a database.

One in forty failed, of twenty causes; one in a thousand was cancelled; of the newest, some wait
for a retry. Weeks are filled as tables and attached, which builds their indexes.
On request they have events, a webhook that fails far more often, and replays.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import psycopg

from app import clock, ids
from app.core import partitions
from app.core.delivery import hours
from app.database import Database
from app.settings import Settings
from bench.datasets import crowd
from bench.lab import owner_url

DAYS = 84
_AT_ONCE = 200_000
_RETRYING = 200

# A remainder that no number has.
_NEVER = 2
# What a lane counts by kind and end.
_TOTALS = {
    f"{kind}s_{end}": f"kind = '{kind}' AND {condition}"
    for kind in ("event", "replay")
    for end, condition in (
        ("succeeded", "status = 'succeeded'"),
        ("failed", "status = 'failed'"),
        ("cancelled", "status = 'cancelled'"),
        ("open", "finished_at IS NULL"),
    )
}

_WEEK = """
DROP TABLE IF EXISTS {child};
CREATE TABLE {child} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
"""
_ATTACH = "ALTER TABLE {parent} ATTACH PARTITION {child} FOR VALUES FROM ('{lower}') TO ('{upper}')"
_NAME = "SELECT history_partition(%s, %s)"

_MADE = "(%(newest)s::bigint - (%(size)s::bigint - n) * %(span)s::bigint / %(size)s)"
_ROWS = f"""
WITH fresh AS MATERIALIZED (
    SELECT n, {crowd.ID.format(milliseconds=_MADE)} AS id, to_timestamp({_MADE} / 1000.0) AS made,
           CASE WHEN n %% 40 = 0 OR n %% %(broken)s = 3 THEN 'failed'
                WHEN n %% 1000 = 7 THEN 'cancelled'
                WHEN n > %(size)s - {_RETRYING} AND n %% 2 = 1 THEN 'retrying'
                ELSE 'succeeded' END AS status,
           (%(webhooks)s::uuid[])[CASE WHEN n %% %(broken)s = 3 THEN 2
                                  ELSE 1 + n / 7 %% cardinality(%(webhooks)s::uuid[])
                                  END] AS webhook_id
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), cause AS MATERIALIZED (
    SELECT *, CASE WHEN status IN ('failed', 'retrying') THEN 1 + n / 40 %% 20 END AS failure
      FROM fresh
), open AS (
    INSERT INTO open_deliveries
           (tenant_id, id, webhook_id, event_id, event_type, kind, priority, sequence,
            feed_sequence, status, attempts, claim_no, attempted_at, outcome, status_code, failure,
            next_attempt_at, created_at)
    SELECT %(tenant)s, id, webhook_id, id, 'finding.created', 'event', 1, n, n, status, 1, 1, made,
           'refused', 500 + failure, failure, made + interval '1 day', made
      FROM cause WHERE status = 'retrying'
), stored AS (
    INSERT INTO {{ended_deliveries}}
           (tenant_id, id, webhook_id, event_id, event_type, kind, priority, sequence, status,
            attempts, attempted_at, outcome, status_code, failure, created_at, finished_at,
            total_ms)
    SELECT %(tenant)s, id, webhook_id, id, 'finding.created', 'event', 1, n, status, 1, made,
           CASE WHEN failure IS NOT NULL THEN 'refused' END, coalesce(500 + failure, 204), failure,
           made, made, n %% 200
      FROM cause WHERE status <> 'retrying'
)
INSERT INTO {{earlier_attempts}}
       (tenant_id, id, delivery_id, number, outcome, started_at, total_ms, status_code)
SELECT %(tenant)s, id, id, 1, 'refused', made, n %% 200, 500 + failure
  FROM cause WHERE status = 'retrying'
"""
# 17 bytes each: webhook id and code (app/core/delivery/history/event_history.py).
_EVENTS = """
INSERT INTO {stored_events} (tenant_id, id, type, payload, decisions, any_disabled, created_at)
SELECT tenant_id, event_id, event_type, %(payload)s,
       uuid_send(webhook_id) || '\\x01'::bytea || uuid_send(%(disabled)s)
       || CASE WHEN sequence %% 100 = 1 THEN '\\x03' ELSE '\\x02' END::bytea,
       sequence %% 100 = 1, created_at
  FROM {ended_deliveries}
"""
_REPLAYED = f"""
WITH source AS MATERIALIZED (
    SELECT *, {crowd.ID.format(milliseconds="%(newest)s::bigint")} AS fresh_id
      FROM deliveries
     WHERE status = 'failed' AND (sequence %% 200 = 0 OR sequence %% %(broken)s = 3
                                  AND sequence / %(broken)s %% 8 = 0)
)
INSERT INTO ended_deliveries
       (tenant_id, id, webhook_id, event_id, event_type, kind, priority, sequence, replay_of,
        status, attempts, attempted_at, outcome, status_code, failure, created_at,
        finished_at)
SELECT tenant_id, fresh_id, webhook_id, event_id, event_type, 'replay', 2, sequence, id,
       CASE WHEN sequence %% 3 = 0 THEN 'failed' ELSE 'succeeded' END, 1, clock_timestamp(),
       CASE WHEN sequence %% 3 = 0 THEN outcome ELSE 'succeeded' END,
       CASE WHEN sequence %% 3 = 0 THEN status_code ELSE 204 END,
       CASE WHEN sequence %% 3 = 0 THEN failure END, clock_timestamp(), clock_timestamp()
  FROM source
"""
_BOOKS = f"""
UPDATE lanes AS l
   SET next_sequence = 1 + events_accepted, replays_accepted = sums.replays_accepted,
       {", ".join(f"{each} = sums.{each}" for each in _TOTALS)}
  FROM (SELECT webhook_id, count(*) FILTER (WHERE kind = 'event') AS events_accepted,
               count(*) FILTER (WHERE kind = 'replay') AS replays_accepted,
               {", ".join(f"count(*) FILTER (WHERE {_TOTALS[each]}) AS {each}" for each in _TOTALS)}
          FROM deliveries GROUP BY 1) AS sums
 WHERE l.webhook_id = sums.webhook_id
"""
_HOURS = """
INSERT INTO delivery_hours (tenant_id, at, webhook_id, accepted, attempted, succeeded, failed,
                            retried, within_50_ms, within_250_ms)
SELECT tenant_id, date_trunc('hour', created_at, 'UTC'), webhook_id, count(*), count(*),
       count(*) FILTER (WHERE status = 'succeeded'), count(*) FILTER (WHERE status = 'failed'),
       count(*) FILTER (WHERE status = 'retrying'), count(*) / 4, count(*) - count(*) / 4
  FROM deliveries GROUP BY 1, 2, 3
"""
# As it is just before the next daily sum.
_A_DAY_AGO = """
DELETE FROM tenant_hours WHERE at > (SELECT max(at) FROM tenant_hours) - interval '1 day'
"""


@dataclass(frozen=True)
class Past:
    """A tenant with `size` deliveries that ended, over `DAYS` days, on these webhooks."""

    tenant_id: UUID
    webhooks: list[UUID]
    size: int
    middle: UUID


@dataclass(frozen=True)
class More:
    """What a past has beside its deliveries: events with this payload, and replays of failures.

    One in `broken` deliveries is the second webhook's, and failed.
    """

    tenant_id: UUID
    payload: bytes
    broken: int


def make(
    settings: Settings, database: Database, size: int, webhooks: int, more: More | None = None
) -> Past:
    """Fill a tenant, of its own or that of `more`, with deliveries; count their hours.

    The newest is made now.
    """
    admin_url, now = owner_url(settings), clock.now()
    lanes = crowd.make(
        admin_url, webhooks=webhooks, tenant_id=more.tenant_id if more else None
    ).lanes
    tenant_id = lanes[0][0]
    past = Past(
        tenant_id,
        [webhook_id for _, webhook_id in lanes],
        size,
        ids.latest_at(now - timedelta(days=DAYS / 2)),
    )
    with psycopg.connect(admin_url, autocommit=True) as connection:
        last = 0
        week = partitions.week_of(now - timedelta(days=DAYS))
        while week <= now:
            first, last = last + 1, _made_before(past, now, week + partitions.WEEK)
            _fill(connection, past, now, week, range(first, last + 1), more)
            week += partitions.WEEK
        if more is not None:
            milliseconds = int(now.timestamp() * 1000)
            connection.execute(_REPLAYED.encode(), {"broken": more.broken, "newest": milliseconds})
        connection.execute(_HOURS)
        connection.execute(_BOOKS.encode())
        with database.transaction(tenant_id) as session:
            hours.close(session, tenant_id)
        connection.execute(_A_DAY_AGO)
        connection.execute("VACUUM ANALYZE")
    return past


def _made_before(past: Past, now: datetime, moment: datetime) -> int:
    """Return how many of the deliveries are made before a moment, all of them before now."""
    if moment > now:
        return past.size
    left = (now - moment) / timedelta(days=DAYS)
    return max(0, past.size - int(left * past.size) - 1)


def _fill(
    connection: "psycopg.Connection[tuple[object, ...]]",
    past: Past,
    now: datetime,
    week: datetime,
    rows: range,
    more: More | None,
) -> None:
    lower, upper = ids.earliest_at(week), ids.earliest_at(week + partitions.WEEK)
    parents = partitions.PARENTS[1:] if more is None else partitions.PARENTS
    names = {parent: _child(connection, parent, lower) for parent in parents}
    for parent, child in names.items():
        for statement in _WEEK.format(parent=parent, child=child).split(";"):
            connection.execute(statement.encode())
    values = {
        "tenant": past.tenant_id,
        "webhooks": past.webhooks,
        "size": past.size,
        "newest": int(now.timestamp() * 1000),
        "span": DAYS * 86_400_000,
        "broken": more.broken if more else _NEVER,
    }
    insert = _ROWS.format(**names)
    for first in rows[::_AT_ONCE]:
        bounds = {"first": first, "last": min(first + _AT_ONCE, rows.stop) - 1}
        connection.execute(insert.encode(), values | bounds)
    if more is not None:
        events = {"payload": more.payload, "disabled": past.webhooks[0]}
        connection.execute(_EVENTS.format(**names).encode(), events)
    for parent, child in names.items():
        attach = _ATTACH.format(parent=parent, child=child, lower=lower, upper=upper)
        connection.execute(attach.encode())


def _child(connection: "psycopg.Connection[tuple[object, ...]]", parent: str, lower: UUID) -> str:
    row = connection.execute(_NAME, (parent, lower)).fetchone()
    assert row is not None
    return str(row[0])
