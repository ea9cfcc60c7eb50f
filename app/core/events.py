"""Events: what happened, fixed as bytes, and one delivery row for each webhook that wants it.

`emit` runs in the transaction of the change it tells of: the event exists if and only if the change
does. It locks no webhook and gives no sequence number (that costs most of the throughput, see
docs/performance.md); workers number deliveries when they claim them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.bells import ring_lanes
from app.core.decisions import DISABLED, FILTERED, MATCHED
from app.database import cursor
from app.errors import EventTooLarge, FieldError
from app.lib import canonical_json

MAX_PAYLOAD = 256 * 1024

# Live events first, then bulk replays; a test or a single replay goes before both, even to a paused
# lane, whose probe it is.
PRIORITY_URGENT, PRIORITY_LIVE, PRIORITY_BULK = 0, 1, 2


@dataclass(frozen=True)
class NewEvent:
    """An event about to be emitted: `data` is JSON as the thing's own GET answers it."""

    type: str
    data: dict[str, Any]
    at: datetime


_EMIT = f"""
WITH fresh AS (
    SELECT * FROM unnest(%(ids)b::uuid[], %(types)b::text[], %(payloads)b::bytea[],
                         %(times)b::timestamptz[]) AS fresh (id, type, payload, at)
), decided AS MATERIALIZED (
    SELECT kinds.type, webhooks.id AS webhook_id,
           CASE WHEN NOT coalesce(kinds.type = ANY (webhooks.event_types), true) THEN {FILTERED}
                WHEN webhooks.status = 'disabled' THEN {DISABLED}
                ELSE {MATCHED} END AS code
      FROM (SELECT DISTINCT type FROM fresh) AS kinds
     CROSS JOIN webhooks
     WHERE webhooks.tenant_id = %(tenant)s AND webhooks.deleted_at IS NULL
       AND webhooks.id IS DISTINCT FROM %(not_to)s
), stored AS (
    INSERT INTO events (tenant_id, id, type, payload, decisions, any_disabled, created_at)
    SELECT %(tenant)s, fresh.id, fresh.type, fresh.payload,
           coalesce(packed.decisions, ''::bytea), coalesce(packed.any_disabled, false), fresh.at
      FROM fresh
      LEFT JOIN (SELECT type, string_agg(uuid_send(webhook_id) || set_byte('\\x00', 0, code), '')
                        AS decisions, bool_or(code = {DISABLED}) AS any_disabled
                   FROM decided GROUP BY type) AS packed USING (type)
), sent AS (
    INSERT INTO deliveries
           (tenant_id, id, webhook_id, event_id, event_type, kind, priority, next_attempt_at)
    SELECT %(tenant)s, id_beside(fresh.id), decided.webhook_id, fresh.id, fresh.type, 'event',
           {PRIORITY_LIVE}, clock_timestamp() + %(first_wait)s
      FROM fresh JOIN decided USING (type)
     WHERE decided.code = {MATCHED}
    RETURNING webhook_id
)
SELECT DISTINCT webhook_id FROM sent
"""


def emit(
    session: Session,
    tenant_id: UUID,
    events: Sequence[NewEvent],
    *,
    not_to: UUID | None = None,
) -> list[UUID]:
    """Store events with a delivery for each webhook that wants them; return the events' ids.

    Rings the lanes after the commit. `not_to` leaves out one webhook (an event about itself).
    Raises `EventTooLarge` when a payload is over 256 KiB.
    """
    identifiers = [ids.new() for _ in events]
    payloads = [
        payload(identifier, event) for identifier, event in zip(identifiers, events, strict=True)
    ]
    _refuse_large(payloads)
    found = cursor(session).execute(
        _EMIT,
        {
            "tenant": tenant_id,
            "ids": identifiers,
            "types": [event.type for event in events],
            "payloads": payloads,
            "times": [event.at for event in events],
            "not_to": not_to,
            "first_wait": session.info["first_wait"],
        },
    )
    ring_lanes(session, [(tenant_id, webhook_id) for (webhook_id,) in found.fetchall()])
    return identifiers


def payload(event_id: UUID, event: NewEvent) -> bytes:
    """Return the body that every receiver of this event gets, byte for byte, in every attempt."""
    return canonical_json.dumps(
        {
            "id": ids.text("evt", event_id),
            "type": event.type,
            "timestamp": rfc3339(event.at),
            "data": event.data,
        }
    )


def _refuse_large(payloads: Sequence[bytes]) -> None:
    for index, body in enumerate(payloads):
        if len(body) > MAX_PAYLOAD:
            raise EventTooLarge(
                FieldError(
                    f"/findings/{index}" if len(payloads) > 1 else "",
                    f"The event would be {len(body)} bytes; at most {MAX_PAYLOAD} are allowed.",
                )
            )
