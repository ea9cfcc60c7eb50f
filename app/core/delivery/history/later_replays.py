"""Later replays of many deliveries at once, as parts of a statement over `rows`.

A probe for each row would look into every partition. Instead, the replays of a webhook are read by
the range of its rows' events. Where a webhook had far more replays than it has rows, each row is
probed after all.
"""

from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app.database import cursor

# Replays that are read as quickly as a row is probed for in some twenty partitions.
_READ_PER_PROBE = 10

_LANES = """
SELECT webhook_id, replays_accepted FROM lanes
 WHERE tenant_id = (SELECT %s::uuid) AND replays_accepted > 0
"""

_EVENT = "webhook_id, event_id"
IS_REPLAYED = "(webhook_id IN (SELECT unnest(%(replayed)s::uuid[]))) IS TRUE"
"""Says of one of `rows` that its webhook had replays; the rows of others need no look."""

_REPLAYS = """
SELECT r.webhook_id, r.event_id, r.id, r.status, r.created_at, r.finished_at
  FROM deliveries AS r
 WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.kind = 'replay'
   AND r.webhook_id = asked.webhook_id AND r.event_id {events} OFFSET 0
"""
AGAIN = f"""
asked AS MATERIALIZED (
    SELECT found.*, lane.replays > {_READ_PER_PROBE} * found.count AS probed
      FROM (SELECT webhook_id, count(*) AS count, min(event)::uuid AS first,
                   max(event)::uuid AS last
              FROM (SELECT webhook_id, event_id::text AS event FROM rows
                     WHERE {IS_REPLAYED} OFFSET 0) AS texts
             GROUP BY 1) AS found
      JOIN unnest(%(replayed)s::uuid[], %(replays)s::bigint[]) AS lane (webhook_id, replays)
        ON lane.webhook_id = found.webhook_id
), again AS MATERIALIZED (
    SELECT r.* FROM asked CROSS JOIN LATERAL (
        {_REPLAYS.format(events="BETWEEN asked.first AND asked.last")}) AS r
     WHERE NOT asked.probed
    UNION ALL
    SELECT r.* FROM (
        SELECT DISTINCT rows.webhook_id, rows.event_id
          FROM rows JOIN asked ON asked.webhook_id = rows.webhook_id AND asked.probed) AS asked
     CROSS JOIN LATERAL ({_REPLAYS.format(events="= asked.event_id")}) AS r
)
"""
"""Two CTEs behind `rows`, which has `webhook_id` and `event_id`: `again` has the replays of rows.

It may have replays of other events too.
"""


def has(condition: str) -> str:
    """Say in SQL of one of `rows` whether some replay `r` of its event fulfils a condition."""
    return _is_event_of(f"again AS r WHERE {condition}")


def has_later(condition: str) -> str:
    """Say the same of a replay that is later than the row, which, if a replay, fulfils it too."""
    return f"""
CASE WHEN is_replay THEN (id IN (SELECT unnest(ARRAY(
         SELECT DISTINCT ON ({_EVENT}) id FROM again AS r
          WHERE {condition} AND {_is_event_of("rows WHERE is_replay")}
          ORDER BY {_EVENT}, id DESC)))) IS NOT TRUE
     ELSE {has(condition)} END
"""


def _is_event_of(rows: str) -> str:
    """Say of a row whether one of `rows` is of its event and webhook.

    Arrays hide from PostgreSQL how many they are, and `IS TRUE` that they could be joined: so it
    hashes them, whatever its statistics say.
    """
    events = f"ARRAY(SELECT webhook_id FROM {rows}), ARRAY(SELECT event_id FROM {rows})"
    return f"(({_EVENT}) IN (SELECT * FROM unnest({events}))) IS TRUE"


def values(session: Session, tenant_id: UUID) -> dict[str, Any]:
    """Return the values that `AGAIN` names: the tenant, and its webhooks with replays."""
    found = cursor(session).execute(_LANES, (tenant_id,)).fetchall()
    return {
        "tenant": tenant_id,
        "replayed": [webhook_id for webhook_id, _ in found],
        "replays": [count for _, count in found],
    }
