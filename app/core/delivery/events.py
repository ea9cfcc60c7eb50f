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

from app import ids
from app.clock import rfc3339
from app.core.delivery import decisions
from app.core.delivery.bells import ring_lanes
from app.core.delivery.decisions import DISABLED, FILTERED, MATCHED
from app.database import Tx, cursor
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


_WEBHOOKS = """
SELECT id, event_types, status = 'disabled' FROM webhooks
 WHERE tenant_id = %s AND deleted_at IS NULL AND id IS DISTINCT FROM %s
"""

# `%b`: psycopg writes an array as binary in a tenth of the time that its text form takes, or less.
_STORE = """
INSERT INTO events (tenant_id, id, type, payload, decisions, any_disabled, created_at)
SELECT %s, * FROM unnest(%b::uuid[], %b::text[], %b::bytea[], %b::bytea[], %b::boolean[],
                         %b::timestamptz[])
"""

_SEND = f"""
INSERT INTO deliveries
       (tenant_id, id, webhook_id, event_id, event_type, kind, priority, next_attempt_at)
SELECT %s, id_beside(fresh.id), matched.webhook_id, fresh.id, fresh.type, 'event',
       {PRIORITY_LIVE}, clock_timestamp() + %s
  FROM unnest(%b::uuid[], %b::text[]) AS fresh (id, type)
  JOIN unnest(%b::uuid[], %b::text[]) AS matched (webhook_id, type) USING (type)
"""


def emit(
    tx: Tx,
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
    cur = cursor(tx)
    webhooks = cur.execute(_WEBHOOKS, (tenant_id, not_to)).fetchall()
    types = [event.type for event in events]
    decided = {kind: _decide(kind, webhooks) for kind in set(types)}
    cur.execute(
        _STORE,
        (
            tenant_id,
            identifiers,
            types,
            payloads,
            [decisions.pack(decided[kind]) for kind in types],
            [DISABLED in decided[kind].values() for kind in types],
            [event.at for event in events],
        ),
    )
    matched = [
        (webhook_id, kind)
        for kind, codes in decided.items()
        for webhook_id, code in codes.items()
        if code == MATCHED
    ]
    if matched:
        wanted, wanted_types = (list(column) for column in zip(*matched, strict=True))
        first_wait = tx.info["first_wait"]
        cur.execute(_SEND, (tenant_id, first_wait, identifiers, types, wanted, wanted_types))
        ring_lanes(tx, dict.fromkeys((tenant_id, webhook_id) for webhook_id in wanted))
    return identifiers


def _decide(kind: str, webhooks: Sequence[tuple[UUID, list[str] | None, bool]]) -> dict[UUID, int]:
    """Decide for each webhook whether it gets an event of this type."""
    return {
        webhook_id: FILTERED
        if event_types is not None and kind not in event_types
        else DISABLED
        if disabled
        else MATCHED
        for webhook_id, event_types, disabled in webhooks
    }


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
