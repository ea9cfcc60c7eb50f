"""Hourly counts of each lane's deliveries: the columns, sums over lanes, retention.

Every writer of an hour holds its lane's lock: numbering (`accepted`, in the hour that
`accepted_hour` says) and outcomes (the rest, in the hour of their statement, which is their
`finished_at` too: a list by that has what an hour counts).
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app.database import cursor

# Buckets of the latency histogram, by upper bound in milliseconds. The last one's is that of a
# whole attempt, and also holds slower ones.
LATENCY_MS = {
    "within_5_ms": 5,
    "within_10_ms": 10,
    "within_25_ms": 25,
    "within_50_ms": 50,
    "within_100_ms": 100,
    "within_250_ms": 250,
    "within_500_ms": 500,
    "within_1_s": 1_000,
    "within_2_s": 2_000,
    "within_5_s": 5_000,
    "within_10_s": 10_000,
    "beyond_10_s": 15_000,
}
_BOUNDS = tuple(LATENCY_MS.values())[:-1]
COUNTS = ("accepted", "attempted", "succeeded", "failed", "retried")
COLUMNS = (*COUNTS, *LATENCY_MS)

# Counter columns, each with the SQL condition of the outcome rows that it counts.
_ADDED = {
    "attempted": "true",
    "succeeded": "status = 'succeeded'",
    "failed": "status = 'failed'",
    "retried": "next_attempt_at IS NOT NULL",
} | {
    name: f"total_ms > {above} AND total_ms <= {most}"
    for name, above, most in zip(LATENCY_MS, (-1, *_BOUNDS), (*_BOUNDS, "'infinity'"), strict=True)
}

# Hours that began longer ago no longer change: 24 h (`accepted_hour`), the hour itself, and one for
# uncommitted transactions.
_CLOSED_AFTER = timedelta(hours=26)
# Rows deleted in one transaction.
AT_ONCE = 20_000

_SUMS = ", ".join(f"sum({name})" for name in COLUMNS)
_CLOSE = f"""
INSERT INTO tenant_hours (tenant_id, at, {", ".join(COLUMNS)})
SELECT tenant_id, at, {_SUMS} FROM delivery_hours
 WHERE tenant_id = (SELECT %(tenant)s::uuid)
   AND at > coalesce((SELECT max(at) FROM tenant_hours WHERE tenant_id = %(tenant)s), '-infinity')
   AND at < clock_timestamp() - %(closed_after)s
 GROUP BY tenant_id, at
    ON CONFLICT DO NOTHING
"""
_FORGET = """
WITH summed AS (
    DELETE FROM tenant_hours WHERE tenant_id = %(tenant)s AND at < %(before)s
), waited AS (
    DELETE FROM backlog_hours WHERE tenant_id = %(tenant)s AND at < %(before)s
)
DELETE FROM delivery_hours WHERE (tenant_id, at, webhook_id) IN (
    SELECT tenant_id, at, webhook_id FROM delivery_hours
     WHERE tenant_id = (SELECT %(tenant)s::uuid) AND at < %(before)s
     ORDER BY at LIMIT %(most)s FOR UPDATE SKIP LOCKED)
"""


def add(done: str) -> str:
    """Return CTEs, the last of them `hours`, that add outcomes to the hour of their locked lanes.

    `done` names their rows: `tenant_id`, `webhook_id`, `total_ms` (null if not timed), and the
    `status` and `next_attempt_at` after the outcome.
    """
    counted = (f"count(*) FILTER (WHERE {which}) AS {name}" for name, which in _ADDED.items())
    counts = f"""
    SELECT tenant_id, webhook_id, date_trunc('hour', statement_timestamp(), 'UTC') AS at,
           {", ".join(counted)}
      FROM {done} GROUP BY tenant_id, webhook_id"""
    return added(counts, _ADDED)


def added(counts: str, names: Iterable[str]) -> str:
    """Return CTEs, the last of them `hours`, that add counts to the hours of locked lanes.

    `counts` is a query for `tenant_id`, `webhook_id`, `at` and the counts of these names.
    """
    return f"""
hour AS MATERIALIZED ({counts}
), known AS (
    UPDATE delivery_hours AS h
       SET version = h.version + 1,
           {", ".join(f"{name} = h.{name} + hour.{name}" for name in names)}
      FROM hour CROSS JOIN LATERAL (
        SELECT n.ctid AS place FROM delivery_hours AS n
         WHERE n.tenant_id = hour.tenant_id AND n.at = hour.at AND n.webhook_id = hour.webhook_id
         ORDER BY n.version DESC LIMIT 1) AS newest
     WHERE h.ctid = newest.place
    RETURNING h.tenant_id, h.webhook_id, h.at
), hours AS (
    INSERT INTO delivery_hours (tenant_id, webhook_id, at, {", ".join(names)})
    SELECT tenant_id, webhook_id, at, {", ".join(names)} FROM hour
     WHERE (tenant_id, webhook_id, at) NOT IN (SELECT tenant_id, webhook_id, at FROM known)
)"""


def close(session: Session, tenant_id: UUID) -> int:
    """Sum final hours over all webhooks, so that a chart of all reads one row per hour.

    Returns how many hours were summed. Only speed depends on how often it runs.
    """
    wanted = {"tenant": tenant_id, "closed_after": _CLOSED_AFTER}
    return cursor(session).execute(_CLOSE, wanted).rowcount


def forget_old(session: Session, tenant_id: UUID, before: datetime) -> int:
    """Delete a tenant's hours that began before a moment; return how many, `AT_ONCE` at most."""
    wanted = {"tenant": tenant_id, "before": before, "most": AT_ONCE}
    return cursor(session).execute(_FORGET, wanted).rowcount
