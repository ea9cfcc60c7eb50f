"""Deliveries and their outcomes: one, those of an event, and what all lists show of them.

`(SELECT …)` hides values from the planner (docs/performance.md).
"""

import base64
import codecs
import enum
import json
import zlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from marshmallow import fields as plain
from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.delivery.event_types import EventType
from app.database import cursor
from app.errors import NotFound
from app.lib.outbound.client import KEPT_BODY_BYTES
from app.schemas import fields
from app.schemas.schema import AnswerSchema

# Deliveries and attempts get their ids from the clocks of different hosts.
CLOCKS_DIFFER_BY = timedelta(hours=1)


def earliest_id(since: datetime) -> UUID:
    """Return a lower bound of the ids of rows made at or after `since`, on any host's clock."""
    return ids.earliest_at(_shift(since, -CLOCKS_DIFFER_BY))


def latest_id(until: datetime) -> UUID:
    """Return an upper bound (exclusive) of the ids of rows made before `until`, on any clock."""
    return ids.earliest_at(_shift(until, CLOCKS_DIFFER_BY))


def _shift(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return moment


class Status(enum.StrEnum):
    """Statuses of a delivery."""

    PENDING = "pending"
    SENDING = "sending"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


# A row whose worker died (lease over) reads as waiting for the next worker.
STATUS = """
CASE WHEN d.status <> 'sending' OR d.next_attempt_at > clock_timestamp() THEN d.status
     WHEN d.attempts = 0 THEN 'pending' ELSE 'retrying' END
"""


@dataclass(frozen=True)
class Attempt:
    """An attempt; durations of phases in milliseconds, None for a phase that did not happen."""

    delivery_id: UUID
    number: int
    outcome: str
    started_at: datetime
    dns_ms: float | None
    connect_ms: float | None
    tls_ms: float | None
    first_byte_ms: float | None
    total_ms: float | None
    status_code: int | None
    error: str | None
    response_headers: str | None
    response_body: bytes | None


_ATTEMPT_COLUMNS = """
a.delivery_id, a.number, a.outcome, a.started_at, a.dns_ms, a.connect_ms, a.tls_ms, a.first_byte_ms,
a.total_ms, a.status_code, a.error
"""

_ATTEMPTS = f"""
SELECT {_ATTEMPT_COLUMNS}, a.response_headers, a.response_body
  FROM delivery_attempts AS a
 WHERE a.tenant_id = (SELECT %(tenant)s::uuid) AND a.delivery_id = %(delivery)s
   AND a.id >= %(oldest)s
 ORDER BY a.number
"""

_LAST_ATTEMPTS = f"""
SELECT DISTINCT ON (a.delivery_id) {_ATTEMPT_COLUMNS},
       NULL AS response_headers, NULL AS response_body
  FROM delivery_attempts AS a
 WHERE a.tenant_id = (SELECT %(tenant)s::uuid) AND a.delivery_id = ANY (%(deliveries)s)
   AND a.id >= %(oldest)s
 ORDER BY a.delivery_id, a.number DESC
"""


class TimingsSchema(AnswerSchema):
    """Duration of each phase in milliseconds; null for a phase that did not happen."""

    dns = plain.Float(attribute="dns_ms", allow_none=True)
    connect = plain.Float(attribute="connect_ms", allow_none=True)
    tls = plain.Float(attribute="tls_ms", allow_none=True)
    first_byte = plain.Float(attribute="first_byte_ms", allow_none=True)
    total = plain.Float(attribute="total_ms", allow_none=True)


class AttemptSummarySchema(AnswerSchema):
    """A delivery attempt."""

    number = fields.Count(example=2)
    at = fields.Time(attribute="started_at")
    outcome = fields.Text(50, example="refused")
    status = fields.Integer(
        0,
        999,
        attribute="status_code",
        allow_none=True,
        description="The HTTP status of the response.",
        example=503,
    )
    error = fields.Text(10_000, allow_none=True)
    timings = fields.Object(TimingsSchema)


class AttemptSchema(AttemptSummarySchema):
    """A delivery attempt, with the receiver's response."""

    headers = plain.List(plain.List(plain.String()), allow_none=True)
    body = plain.String(
        allow_none=True, metadata={"description": "The first 4 KiB, as text; gzip is unpacked."}
    )
    body_base64 = plain.String(
        allow_none=True,
        metadata={"description": "The bytes that came, exactly, where they are not UTF-8."},
    )


def last_attempts(
    session: Session, tenant_id: UUID, delivery_ids: Collection[UUID]
) -> dict[UUID, Attempt]:
    """Return the last attempt of each delivery that has one, without headers and body."""
    if not delivery_ids:
        return {}
    found = cursor(session, class_row(Attempt)).execute(
        _LAST_ATTEMPTS,
        {
            "tenant": tenant_id,
            "deliveries": list(delivery_ids),
            "oldest": earliest_id(ids.made_at(min(delivery_ids))),
        },
    )
    return {attempt.delivery_id: attempt for attempt in found.fetchall()}


def represent_attempt(attempt: Attempt) -> dict[str, Any]:
    """Return the JSON representation of an attempt with the receiver's response.

    `body` is the kept part as text, unpacked if it is gzip; if that is not UTF-8, `body_base64` has
    the exact bytes that came.
    """
    headers = json.loads(attempt.response_headers) if attempt.response_headers else None
    told = {**summarise_attempt(attempt), "headers": headers, "body": None, "body_base64": None}
    raw = attempt.response_body
    if raw is None:
        return told
    gzipped = any(
        name.lower() == "content-encoding" and value.strip().lower() in ("gzip", "x-gzip")
        for name, value in headers or ()
    )
    shown = raw
    if gzipped:
        with suppress(zlib.error):
            unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(raw, KEPT_BODY_BYTES)
            shown = unpacked or raw
    # The part that was kept may end inside a character.
    cut = attempt.error is not None or len(shown) >= KEPT_BODY_BYTES
    try:
        body = codecs.getincrementaldecoder("utf-8")().decode(shown, final=not cut)
    except UnicodeDecodeError:
        exact = base64.b64encode(raw).decode("ascii")
        return told | {"body": shown.decode("utf-8", "replace"), "body_base64": exact}
    return told | {"body": body}


def summarise_attempt(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt's JSON summary, for lists of deliveries."""
    return AttemptSummarySchema.of(attempt, timings=TimingsSchema.of(attempt))


COLUMNS = f"""
d.id, d.webhook_id, d.event_id, d.event_type, d.kind, d.sequence, d.replay_of, d.job_id,
{STATUS} AS status, d.attempts, d.next_attempt_at, d.created_at, d.finished_at
"""

_FIND = f"""
SELECT {COLUMNS} FROM deliveries AS d
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND webhook_of(d.webhook_id) = %(webhook)s
   AND d.id = %(id)s
"""


class DeliverySchema(AnswerSchema):
    """A delivery of one event to one webhook."""

    optional: ClassVar[tuple[str, ...]] = ("lane",)

    id = fields.Id("dlv")
    webhook_id = fields.Id("whk")
    event_id = fields.Id("evt")
    event_type = fields.Choice(EventType)
    kind = fields.Text(10, description="`event`, `replay` or `test`.", example="event")
    sequence = fields.Count(
        1,
        allow_none=True,
        description="The event's number in this webhook's feed; null: not numbered (yet).",
        example=4711,
    )
    lane = fields.Integer(
        2, ids.MOST_LANES, description="The lane with this number; it is not here for the first."
    )
    status = fields.Choice(Status)
    replay_of = fields.Id("dlv", allow_none=True)
    arrived_by_replay = fields.Id(
        "dlv",
        allow_none=True,
        description="The replay that delivered the event first; null: none has, or this delivery "
        "succeeded itself. Bulk replays leave such deliveries out.",
    )
    job_id = fields.Id("job", allow_none=True)
    attempt_count = fields.Count(example=2)
    last_attempt = fields.Object(AttemptSummarySchema, allow_none=True)
    next_attempt_at = fields.Time(allow_none=True)
    created_at = fields.Time()
    finished_at = fields.Time(allow_none=True)


@dataclass(frozen=True)
class Delivery:
    """The current state of a delivery, with its last attempt, if it has one.

    `arrived_by_replay` is the replay that delivered its event first; None if the delivery did.
    """

    id: UUID
    webhook_id: UUID
    event_id: UUID
    event_type: str
    kind: str
    sequence: int | None
    replay_of: UUID | None
    job_id: UUID | None
    status: str
    attempts: int
    next_attempt_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    last_attempt: Attempt | None = None
    arrived_by_replay: UUID | None = None


_Delivery = TypeVar("_Delivery", bound=Delivery)


def find(session: Session, tenant_id: UUID, webhook_id: UUID, delivery_id: UUID | None) -> Delivery:
    """Return one delivery of a webhook; raises `NotFound`."""
    found = cursor(session, class_row(Delivery)).execute(
        _FIND, {"tenant": tenant_id, "webhook": webhook_id, "id": delivery_id}
    )
    rows = listed(session, tenant_id, found.fetchall())
    if not rows:
        raise NotFound("There is no delivery with this id to this webhook.")
    return rows[0]


def listed(session: Session, tenant_id: UUID, rows: Sequence[_Delivery]) -> list[_Delivery]:
    """Return deliveries with the last attempt of each, and the replays that arrived."""
    last = last_attempts(session, tenant_id, [row.id for row in rows])
    behind = [row for row in rows if row.status != Status.SUCCEEDED]
    arrived: dict[UUID, UUID] = {}
    if behind:
        events = sorted({(row.webhook_id, row.event_id) for row in behind})
        wanted = {
            "tenant": tenant_id,
            "webhooks": [webhook for webhook, _ in events],
            "events": [event for _, event in events],
            "oldest": [earliest_id(ids.made_at(event)) for _, event in events],
        }
        found = cursor(session).execute(_ARRIVED, wanted)
        replays = {(webhook, event): replay for webhook, event, replay in found}
        arrived = {
            row.id: replays[row.webhook_id, row.event_id]
            for row in behind
            if (row.webhook_id, row.event_id) in replays
        }
    return [
        replace(row, last_attempt=last.get(row.id), arrived_by_replay=arrived.get(row.id))
        for row in rows
    ]


# A page has at most 200 events, so each is probed; a webhook without replays costs no probe. A
# replay is made after its event, which prunes partitions.
_ARRIVED = """
SELECT e.webhook_id, e.id, arrived.id
  FROM unnest(%(webhooks)s::uuid[], %(events)s::uuid[], %(oldest)s::uuid[])
       AS e (webhook_id, id, oldest_id)
  JOIN lanes AS l ON l.tenant_id = (SELECT %(tenant)s::uuid) AND l.webhook_id = e.webhook_id
                 AND l.replays_succeeded > 0
 CROSS JOIN LATERAL (
    SELECT r.id FROM deliveries AS r
     WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.webhook_id = e.webhook_id
       AND r.kind = 'replay' AND r.event_id = e.id AND r.status = 'succeeded'
       AND r.id >= e.oldest_id
     ORDER BY r.finished_at, r.id LIMIT 1) AS arrived
"""


def payload_of(session: Session, tenant_id: UUID, event_id: UUID) -> bytes | None:
    """Return an event's payload, byte for byte as sent; None when it is no longer kept."""
    found = cursor(session, scalar_row).execute(
        "SELECT payload FROM events WHERE tenant_id = %s AND id = %s", (tenant_id, event_id)
    )
    return found.fetchone()


def represent(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery's JSON representation in lists."""
    waits, last = delivery.next_attempt_at, delivery.last_attempt
    lane, arrived = ids.lane_number(delivery.webhook_id), delivery.arrived_by_replay
    return DeliverySchema.of(
        delivery,
        **({"lane": lane} if lane > 1 else {}),
        attempt_count=delivery.attempts,
        arrived_by_replay=arrived and ids.text("dlv", arrived),
        last_attempt=None if last is None else summarise_attempt(last),
        next_attempt_at=rfc3339(waits) if waits and delivery.status != Status.SENDING else None,
    )


def describe(session: Session, tenant_id: UUID, delivery: Delivery) -> dict[str, Any]:
    """Return a delivery's full JSON representation, with its payload and every attempt."""
    oldest = earliest_id(ids.made_at(delivery.id))
    wanted = {"tenant": tenant_id, "delivery": delivery.id, "oldest": oldest}
    attempts = cursor(session, class_row(Attempt)).execute(_ATTEMPTS, wanted).fetchall()
    payload = payload_of(session, tenant_id, delivery.event_id)
    return {
        **represent(delivery),
        "payload": None if payload is None else json.loads(payload),
        "attempts": [represent_attempt(attempt) for attempt in attempts],
    }
