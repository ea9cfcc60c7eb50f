"""How many deliveries of a tenant waited, by the hour: the most that one look a minute found."""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.delivery.history.hourly_stats import Span
from app.database import cursor

# The tenants with something open by one probe each, then their lanes' counters: no delivery is
# read but the unnumbered ones.
_LOOK = """
INSERT INTO backlog_hours AS b (tenant_id, at, most)
WITH RECURSIVE tenant AS (
    (SELECT tenant_id AS id FROM open_deliveries ORDER BY tenant_id LIMIT 1)
     UNION ALL
    SELECT (SELECT tenant_id FROM open_deliveries WHERE tenant_id > tenant.id
             ORDER BY tenant_id LIMIT 1)
      FROM tenant WHERE tenant.id IS NOT NULL
)
SELECT tenant.id, date_trunc('hour', statement_timestamp(), 'UTC'),
       sum(l.events_open + l.replays_open + l.tests_open
           + count_unnumbered(l.tenant_id, l.webhook_id))
  FROM tenant JOIN present_lanes AS l ON l.tenant_id = tenant.id
 GROUP BY tenant.id
    ON CONFLICT (tenant_id, at) DO UPDATE SET most = excluded.most WHERE excluded.most > b.most
"""
_ROWS = """
SELECT at, most FROM backlog_hours
 WHERE tenant_id = (SELECT %s::uuid) AND at >= %s AND at < %s
"""


def look(session: Session) -> int:
    """Note what waits now of every tenant; return how many rows changed."""
    return cursor(session).execute(_LOOK).rowcount


def of(session: Session, tenant_id: UUID, span: Span) -> Mapping[datetime, int]:
    """Return the most that waited in each row of a span in which something did."""
    found: dict[datetime, int] = {}
    starts = span.starts
    rows = cursor(session).execute(_ROWS, (tenant_id, span.since, span.until)).fetchall()
    for at, most in rows:
        start = max(each for each in starts if each <= at)
        found[start] = max(found.get(start, 0), most)
    return found
