"""Deliveries and their outcomes: one, those of an event, and what all lists show of them.

`(SELECT …)` hides values from the planner (docs/performance.md).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.delivery.event_types import EventType
from app.core.delivery.history import delivery_attempts
from app.core.delivery.history.delivery_attempts import Attempt, AttemptSummarySchema
from app.core.delivery.history.delivery_filters import STATUS, Status, earliest_id
from app.database import cursor
from app.errors import NotFound
from app.schemas import fields
from app.schemas.schema import AnswerSchema

COLUMNS = f"""
d.id, d.webhook_id, d.event_id, d.event_type, d.kind, d.sequence, d.replay_of, d.job_id,
{STATUS} AS status, d.attempts, d.next_attempt_at, d.created_at, d.finished_at
"""

_FIND = f"""
SELECT {COLUMNS} FROM deliveries AS d
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND webhook_of(d.webhook_id) = %(webhook)s
   AND d.id = %(id)s
"""

# The id of every delivery but a replay contains its event's millisecond; replays have an index by
# webhook and event, and lanes count them. So no index by event alone is needed, which would slow
# every write of a row.
EVENT_ROWS = """
SELECT of_event.*
  FROM unnest(%(events)s::uuid[], %(first_ids)s::uuid[], %(last_ids)s::uuid[], %(oldest)s::uuid[])
       AS e (id, first_id, last_id, oldest_id)
 CROSS JOIN LATERAL (
    SELECT first.* FROM deliveries AS first
     WHERE first.tenant_id = (SELECT %(tenant)s::uuid) AND first.event_id = e.id
       AND first.id BETWEEN e.first_id AND e.last_id AND first.kind <> 'replay'
    UNION ALL
    SELECT again.* FROM lanes AS l
     CROSS JOIN LATERAL (
        SELECT * FROM deliveries AS r
         WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.webhook_id = l.webhook_id
           AND r.kind = 'replay' AND r.event_id = e.id AND r.id >= e.oldest_id
         ORDER BY r.id DESC LIMIT 500) AS again
     WHERE l.tenant_id = (SELECT %(tenant)s::uuid) AND l.replays_accepted > 0
       AND webhook_of(l.webhook_id) = coalesce(%(webhook)s, webhook_of(l.webhook_id))) AS of_event
"""
_OF_EVENT = f"""
SELECT {COLUMNS} FROM ({EVENT_ROWS}) AS d
 WHERE webhook_of(d.webhook_id) = coalesce(%(webhook)s, webhook_of(d.webhook_id))
 ORDER BY d.id DESC LIMIT 500
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
class Row:
    """The current state of a delivery."""

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


@dataclass(frozen=True)
class Listed:
    """A delivery with its last attempt, if it has one.

    `arrived_by_replay` is the replay that delivered its event first; None if the delivery did.
    """

    row: Row
    last_attempt: Attempt | None
    arrived_by_replay: UUID | None = None

    @property
    def id(self) -> UUID:
        """The delivery's id."""
        return self.row.id


def of_event(
    session: Session, tenant_id: UUID, event_id: UUID, webhook_id: UUID | None = None
) -> list[Listed]:
    """Return the deliveries of one event, oldest first: to one webhook, or to all.

    At most the newest 500.
    """
    wanted = {"tenant": tenant_id, "webhook": webhook_id, **event_values([event_id])}
    found = cursor(session, class_row(Row)).execute(_OF_EVENT, wanted)
    return listed(session, tenant_id, found.fetchall()[::-1])


def event_values(events: Sequence[UUID]) -> dict[str, object]:
    """Return the parameter values of `EVENT_ROWS` for these events."""
    made_at = [ids.made_at(each) for each in events]
    return {
        "events": list(events),
        "first_ids": [ids.earliest_at(moment) for moment in made_at],
        "last_ids": [ids.latest_at(moment) for moment in made_at],
        "oldest": [earliest_id(moment) for moment in made_at],
    }


def find(session: Session, tenant_id: UUID, webhook_id: UUID, delivery_id: UUID | None) -> Listed:
    """Return one delivery of a webhook; raises `NotFound`."""
    found = cursor(session, class_row(Row)).execute(
        _FIND, {"tenant": tenant_id, "webhook": webhook_id, "id": delivery_id}
    )
    rows = listed(session, tenant_id, found.fetchall())
    if not rows:
        raise NotFound("There is no delivery with this id to this webhook.")
    return rows[0]


def listed(session: Session, tenant_id: UUID, rows: Sequence[Row]) -> list[Listed]:
    """Return rows with the last attempt of each."""
    last = delivery_attempts.last_of(session, tenant_id, [row.id for row in rows])
    behind = [row for row in rows if row.status != Status.SUCCEEDED]
    arrived = _arrived(session, tenant_id, behind) if behind else {}
    return [
        Listed(
            row,
            last.get(row.id),
            arrived.get((row.webhook_id, row.event_id)) if row.status != Status.SUCCEEDED else None,
        )
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


def _arrived(
    session: Session, tenant_id: UUID, rows: Sequence[Row]
) -> dict[tuple[UUID, UUID], UUID]:
    """Return the replay that delivered each event first, by webhook and event."""
    events = sorted({(row.webhook_id, row.event_id) for row in rows})
    wanted = {
        "tenant": tenant_id,
        "webhooks": [webhook for webhook, _ in events],
        "events": [event for _, event in events],
        "oldest": [earliest_id(ids.made_at(event)) for _, event in events],
    }
    found = cursor(session).execute(_ARRIVED, wanted).fetchall()
    return {(webhook, event): replay for webhook, event, replay in found}


def payload_of(session: Session, tenant_id: UUID, event_id: UUID) -> bytes | None:
    """Return an event's payload, byte for byte as sent; None when it is no longer kept."""
    found = cursor(session, scalar_row).execute(
        "SELECT payload FROM events WHERE tenant_id = %s AND id = %s", (tenant_id, event_id)
    )
    return found.fetchone()


def represent(delivery: Listed) -> dict[str, Any]:
    """Return a delivery's JSON representation in lists."""
    row = delivery.row
    waits = row.next_attempt_at is not None and row.status != Status.SENDING
    last = delivery.last_attempt
    lane = ids.lane_number(row.webhook_id)
    return DeliverySchema.of(
        row,
        **({"lane": lane} if lane > 1 else {}),
        attempt_count=row.attempts,
        arrived_by_replay=_text("dlv", delivery.arrived_by_replay),
        last_attempt=None if last is None else delivery_attempts.summarise(last),
        next_attempt_at=rfc3339(row.next_attempt_at) if waits and row.next_attempt_at else None,
    )


def describe(session: Session, tenant_id: UUID, delivery: Listed) -> dict[str, Any]:
    """Return a delivery's full JSON representation, with its payload and every attempt."""
    attempts = delivery_attempts.of(session, tenant_id, delivery.id)
    payload = payload_of(session, tenant_id, delivery.row.event_id)
    return {
        **represent(delivery),
        "payload": None if payload is None else json.loads(payload),
        "attempts": [delivery_attempts.represent(attempt) for attempt in attempts],
    }


def _text(prefix: str, identifier: UUID | None) -> str | None:
    return None if identifier is None else ids.text(prefix, identifier)
