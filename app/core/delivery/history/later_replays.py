"""Later replays of many deliveries at once, as parts of a statement over `rows`.

An index probe for each row would visit every partition. Instead, the replays of a webhook are read
by the range of its rows' events.
"""

from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.database import cursor

_REPLAYED = """
SELECT webhook_id FROM lanes WHERE tenant_id = (SELECT %s::uuid) AND replays_accepted > 0
"""

_EVENT = "webhook_id, event_id"
IS_REPLAYED = "(webhook_id IN (SELECT unnest(%(replayed)s::uuid[]))) IS TRUE"
"""SQL condition of a row: its webhook has had replays. Other rows need no check."""

AGAIN = f"""
ranges AS MATERIALIZED (
    SELECT webhook_id, min(event)::uuid AS first, max(event)::uuid AS last
      FROM (SELECT webhook_id, event_id::text AS event FROM rows WHERE {IS_REPLAYED} OFFSET 0) AS t
     GROUP BY 1
), again AS MATERIALIZED (
    SELECT r.* FROM ranges CROSS JOIN LATERAL (
        SELECT r.webhook_id, r.event_id, r.id, r.status, r.created_at, r.finished_at
          FROM deliveries AS r
         WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.kind = 'replay'
           AND r.webhook_id = ranges.webhook_id
           AND r.event_id BETWEEN ranges.first AND ranges.last OFFSET 0) AS r
)
"""
"""Two CTEs to follow `rows` (`webhook_id`, `event_id`): `again` has the replays of its events.

It may have replays of other events too.
"""


def has(condition: str) -> str:
    """Return the SQL condition of a row that some replay `r` of its event fulfils `condition`."""
    return _is_event_of(f"again AS r WHERE {condition}")


def has_later(condition: str) -> str:
    """Return `has` for replays later than the row; a row that is a replay must fulfil it too."""
    return f"""
CASE WHEN is_replay THEN (id IN (SELECT unnest(ARRAY(
         SELECT DISTINCT ON ({_EVENT}) id FROM again AS r
          WHERE {condition} AND {_is_event_of("rows WHERE is_replay")}
          ORDER BY {_EVENT}, id DESC)))) IS NOT TRUE
     ELSE {has(condition)} END
"""


def _is_event_of(rows: str) -> str:
    """Return the SQL condition of a row that one of `rows` has its event and webhook.

    Arrays hide the row count from PostgreSQL, and `IS TRUE` prevents a join: so it hashes the
    values regardless of its statistics.
    """
    events = f"ARRAY(SELECT webhook_id FROM {rows}), ARRAY(SELECT event_id FROM {rows})"
    return f"(({_EVENT}) IN (SELECT * FROM unnest({events}))) IS TRUE"


def values(session: Session, tenant_id: UUID) -> dict[str, Any]:
    """Return the parameter values of `AGAIN`: the tenant, and its webhooks with replays."""
    replayed = cursor(session, scalar_row).execute(_REPLAYED, (tenant_id,)).fetchall()
    return {"tenant": tenant_id, "replayed": replayed}
