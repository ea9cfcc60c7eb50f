"""Figures of lanes by their state, and the webhooks whose receivers fail most.

One pass over `lanes`, which has a row for each webhook and no more however many deliveries wait.
"""

from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app.core.delivery.lanes.lane_health import REFUSES
from app.database import cursor

# The state of a lane is the first that applies.
STATES = ("suspended", "held", "paused", "refusing", "recovering", "slow", "ready")
# Most webhooks named in metrics: each is a time series.
WORST = 20


@dataclass(frozen=True)
class LaneFigures:
    """The lanes of enabled webhooks in one state.

    `lag` is the age in seconds of the oldest state of a lane with open deliveries: since it is
    held, failing, refusing, recovering or due. `concurrency` is the sum of their limits of POSTs in
    flight, `open` the number of open numbered deliveries.
    """

    state: str
    lanes: int
    lag: float
    concurrency: int
    open: int


@dataclass(frozen=True)
class FailingWebhook:
    """A webhook whose receiver failed, or refuses and refused, `failures` times in a row."""

    tenant_id: UUID
    webhook_id: UUID
    failures: int


# MATERIALIZED makes the planner group by hashing; otherwise it would sort every lane.
_STATES = f"""
WITH present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), lane AS MATERIALIZED (
    SELECT CASE WHEN t.suspended_at IS NOT NULL THEN 'suspended'
                WHEN l.held_since IS NOT NULL THEN 'held'
                WHEN l.paused_until > present.now THEN 'paused'
                WHEN {REFUSES} THEN 'refusing'
                WHEN l.recovering > 0 THEN 'recovering'
                WHEN l.slow_at IS NOT NULL THEN 'slow'
                ELSE 'ready' END AS state,
           CASE WHEN t.suspended_at IS NOT NULL THEN t.suspended_at
                WHEN l.held_since IS NOT NULL THEN l.held_since
                WHEN l.paused_until > present.now THEN l.failing_since
                WHEN {REFUSES} THEN l.unsuccessful_since
                WHEN l.recovering > 0 THEN l.recovering_since
                ELSE l.due_at END AS since,
           l.events_open + l.replays_open + l.tests_open AS open,
           least(l.concurrency, w.max_in_flight) AS concurrency
      FROM lanes AS l
      JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = l.webhook_id
      JOIN tenants AS t ON t.id = l.tenant_id
     CROSS JOIN present
     WHERE w.status = 'enabled' AND w.deleted_at IS NULL
)
SELECT state, count(*) AS lanes, sum(concurrency) AS concurrency, sum(open)::bigint AS open,
       greatest(coalesce(extract(epoch FROM (SELECT now FROM present)
                                            - min(since) FILTER (WHERE open > 0)), 0), 0)::float8
           AS lag
  FROM lane GROUP BY state
"""
_WORST = f"""
SELECT l.tenant_id, l.webhook_id, counted.failures
  FROM lanes AS l JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = l.webhook_id
 CROSS JOIN LATERAL (
    SELECT CASE WHEN {REFUSES} THEN l.unsuccessful_attempts
                ELSE l.consecutive_failures END AS failures) AS counted
 WHERE counted.failures > 0 AND w.status = 'enabled' AND w.deleted_at IS NULL
 ORDER BY counted.failures DESC, l.unsuccessful_since, l.webhook_id LIMIT %s
"""


def by_state(session: Session) -> list[LaneFigures]:
    """Return the figures of every state, in a session that sees every tenant."""
    found = {row.state: row for row in cursor(session, class_row(LaneFigures)).execute(_STATES)}
    return [found.get(state, LaneFigures(state, 0, 0.0, 0, 0)) for state in STATES]


def worst(session: Session) -> list[FailingWebhook]:
    """Return the webhooks with the most failures in a row, in a session that sees every tenant."""
    return cursor(session, class_row(FailingWebhook)).execute(_WORST, (WORST,)).fetchall()
