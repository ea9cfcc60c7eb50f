"""Events: the payload, fixed as bytes, and one delivery row per subscribed webhook (fan-out).

`emit` runs in the transaction of the change that the event reports. It locks no webhook and assigns
no sequence number (docs/performance.md); workers number deliveries when they claim them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row

from app import ids
from app.clock import rfc3339
from app.core.wakeups import ring_lanes
from app.database import Tx, cursor
from app.errors import EventTooLarge, FieldError
from app.lib import canonical_json

MAX_PAYLOAD = 256 * 1024
_MICROSECOND = timedelta(microseconds=1)

# Live events go before bulk replays. A test or a single replay goes before both, also to a paused
# lane, where it is the probe.
PRIORITIES = PRIORITY_URGENT, PRIORITY_LIVE, PRIORITY_BULK = 0, 1, 2


@dataclass(frozen=True)
class NewEvent:
    """An event about to be emitted: `data` is JSON as the object's own GET returns it.

    `subject` is the object, where deliveries are listed by it. `at` is the database's time.
    """

    type: str
    data: dict[str, Any]
    at: datetime
    subject: UUID | None = None


# `%b`: psycopg encodes a binary array at least ten times as fast as its text form.
_EMIT = "SELECT emit_events(%s, %s, %b::uuid[], %b::bytea[], %b::uuid[], %s, %s, %s)"


def emit(
    tx: Tx,
    tenant_id: UUID,
    events: Sequence[NewEvent],
    *,
    not_to: UUID | None = None,
) -> list[UUID]:
    """Store events of one type and moment, and their deliveries; return the events' ids.

    Rings the lanes after the commit. `not_to` excludes the webhook that the event is about.
    Raises `EventTooLarge` when a payload is over 256 KiB, and `ValueError` for several types or
    moments.
    """
    ((kind, at),) = {(event.type, event.at) for event in events}
    identifiers = [ids.new(at + n * _MICROSECOND) for n in range(len(events))]
    payloads = [
        payload(identifier, event) for identifier, event in zip(identifiers, events, strict=True)
    ]
    for body in payloads:
        if len(body) > MAX_PAYLOAD:
            raise too_large(len(body), "")
    subjects = [event.subject for event in events]
    limits = (at, tx.info["first_wait"], not_to)
    values = (tenant_id, kind, identifiers, payloads, subjects, *limits)
    ring_webhooks(tx, tenant_id, cursor(tx, scalar_row).execute(_EMIT, values).fetchone())
    return identifiers


def ring_webhooks(tx: Tx, tenant_id: UUID, webhooks: Sequence[UUID] | None) -> None:
    """Ring the lanes of the webhooks that `emit_events` named, if any, after the commit."""
    ring_lanes(tx, ((tenant_id, webhook_id) for webhook_id in webhooks or ()))


def payload(event_id: UUID, event: NewEvent) -> bytes:
    """Return the request body of this event: the same bytes for every receiver and attempt."""
    return canonical_json.dumps(
        {
            "id": ids.text("evt", event_id),
            "type": event.type,
            "timestamp": rfc3339(event.at),
            "data": event.data,
        }
    )


def too_large(size: int, pointer: str) -> EventTooLarge:
    """Return the error for a payload over 256 KiB; `pointer` names the member that causes it."""
    return EventTooLarge(
        FieldError(pointer, f"The event would be {size} bytes; at most {MAX_PAYLOAD} are allowed.")
    )
