"""Gauges of lanes by their state, and of the webhooks that fail most, of `/metrics`.

They read the lanes with work, whatever number of others there is.
"""

from collections.abc import Iterator
from typing import Final

from psycopg.rows import dict_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.delivery.lanes.lane_health import REFUSES
from app.core.health.parts import Gauge
from app.database import cursor
from app.settings import Settings

# The state of a lane is the first that applies.
STATES: Final = ("suspended", "held", "paused", "refusing", "recovering", "slow", "ready")
# Most webhooks named in metrics: each is a time series.
WORST = 20
_OF_LANES: Final = {
    "lanes": "Lanes of enabled webhooks; those without work are ready.",
    # Since the oldest with open deliveries is held, failing, refusing, recovering or due.
    "lane_lag_seconds": "How long the longest waiting lane has waited.",
    "lane_concurrency": "Concurrent POSTs allowed on lanes with work, in all.",
    "lane_open_deliveries": "Open deliveries that have a number.",
}
# The lanes that are to be looked at, stopped or in trouble, or whose tenant is suspended, by
# indexes that have few others: what rests is counted as ready, and never read.
_STIRRING = f"""
WITH present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), stirring AS (
    SELECT * FROM (SELECT tenant_id, webhook_id FROM lanes
                    WHERE look_at >= (SELECT lanes_through FROM sweeps)
                    ORDER BY look_at OFFSET 0) AS to_look_at
    UNION SELECT tenant_id, webhook_id FROM lanes
           WHERE held_since IS NOT NULL OR paused_until IS NOT NULL
    UNION SELECT tenant_id, webhook_id FROM lanes WHERE unsuccessful_since IS NOT NULL
    UNION SELECT k.tenant_id, k.id FROM tenants AS t JOIN webhook_lanes AS k ON k.tenant_id = t.id
           WHERE t.suspended_at IS NOT NULL
), lane AS MATERIALIZED (
    SELECT l.tenant_id, w.id AS of_webhook, t.suspended_at, l.held_since, l.paused_until,
           l.failing_since, l.unsuccessful_since, l.recovering_since, l.slow_at,
           l.due_at, {REFUSES} AS refuses, l.unsuccessful_attempts, l.consecutive_failures,
           l.events_open + l.replays_open + l.tests_open AS open,
           least(l.concurrency, w.max_in_flight) AS concurrency
      FROM stirring AS s
      JOIN webhook_lanes AS k ON k.tenant_id = s.tenant_id AND k.id = s.webhook_id
      JOIN webhooks AS w ON w.tenant_id = k.tenant_id AND w.id = k.webhook_id
      JOIN tenants AS t ON t.id = s.tenant_id
     CROSS JOIN LATERAL (SELECT * FROM lanes AS n
                          WHERE n.tenant_id = s.tenant_id AND n.webhook_id = s.webhook_id
                          ORDER BY n.version DESC LIMIT 1) AS l
     WHERE w.status = 'enabled' AND w.deleted_at IS NULL
)
"""
_READ_LANES = f"""
{_STIRRING}, placed AS (
    SELECT lane.*,
           CASE WHEN suspended_at IS NOT NULL THEN 'suspended'
                WHEN held_since IS NOT NULL THEN 'held'
                WHEN paused_until > present.now THEN 'paused'
                WHEN refuses THEN 'refusing'
                WHEN recovering_since IS NOT NULL THEN 'recovering'
                WHEN slow_at IS NOT NULL THEN 'slow'
                ELSE 'ready' END AS state,
           CASE WHEN suspended_at IS NOT NULL THEN suspended_at
                WHEN held_since IS NOT NULL THEN held_since
                WHEN paused_until > present.now THEN failing_since
                WHEN refuses THEN unsuccessful_since
                WHEN recovering_since IS NOT NULL THEN recovering_since
                ELSE due_at END AS since
      FROM lane CROSS JOIN present
)
SELECT state, count(*) AS lanes, sum(concurrency) AS lane_concurrency,
       sum(open)::bigint AS lane_open_deliveries,
       greatest(coalesce(extract(epoch FROM (SELECT now FROM present)
                                            - min(since) FILTER (WHERE open > 0)), 0), 0)::float8
           AS lane_lag_seconds
  FROM placed GROUP BY state
"""
_ENABLED = "SELECT coalesce(sum(lanes), 0) FROM webhook_counts WHERE status = 'enabled'"
_READ_WORST = f"""
{_STIRRING}
SELECT tenant_id, of_webhook, max(counted.failures) AS failures
  FROM lane CROSS JOIN LATERAL (
    SELECT CASE WHEN refuses THEN unsuccessful_attempts
                ELSE consecutive_failures END AS failures) AS counted
 WHERE counted.failures > 0
 GROUP BY tenant_id, of_webhook
 ORDER BY failures DESC, min(unsuccessful_since), of_webhook LIMIT %s
"""


def lanes(session: Session, _: Settings) -> Iterator[Gauge]:
    """Yield for each state how many lanes are in it, their lag, concurrency and open deliveries."""
    found = {row["state"]: row for row in cursor(session, dict_row).execute(_READ_LANES.encode())}
    enabled = cursor(session, scalar_row).execute(_ENABLED).fetchone() or 0
    ready = float(enabled) - sum(row["lanes"] for row in found.values())
    for name, text in _OF_LANES.items():
        values = {(state,): float(found.get(state, {}).get(name, 0)) for state in STATES}
        if name == "lanes":
            # The lanes that rest. One that was added or ended in between makes none below zero.
            values["ready",] += max(ready, 0.0)
        yield Gauge(name, text, values, ("state",))


def worst_webhooks(session: Session, _: Settings) -> Iterator[Gauge]:
    """Yield how often in a row the receivers failed, or refuse and refused, that did so most."""
    values = {
        (ids.text("ten", tenant), ids.text("whk", webhook)): float(failures)
        for tenant, webhook, failures in cursor(session).execute(_READ_WORST.encode(), (WORST,))
    }
    yield Gauge(
        "webhook_consecutive_failures",
        "Failures in a row of the webhooks with work that have the most, 20 at most.",
        values,
        ("tenant_id", "webhook_id"),
    )
