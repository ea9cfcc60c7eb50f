"""The history of an event across all webhooks: its payload, decisions and deliveries."""

import enum
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.callers import Caller
from app.core.delivery.event_types import EventType
from app.core.delivery.history import delivery_history
from app.core.delivery.history.delivery_history import (
    COLUMNS,
    Delivery,
    Status,
    earliest_id,
    listed,
)
from app.database import cursor
from app.errors import NotFound
from app.models import Event

# The count of deliveries ahead in the lane stops here.
_COUNTED_AT_MOST = 1000


class LaneState(enum.StrEnum):
    """States of a lane: how its webhook is sent to, or why it is not; the first that applies."""

    DELETED = "deleted"
    DISABLED = "disabled"
    HELD = "held"
    PAUSED = "paused"
    SLOW = "slow"
    SENDING = "sending"
    IDLE = "idle"


_LANE = """
SELECT CASE WHEN w.deleted_at IS NOT NULL THEN 'deleted'
            WHEN w.status = 'disabled' THEN 'disabled'
            WHEN l.held_since IS NOT NULL THEN 'held'
            WHEN l.paused_until > clock_timestamp() THEN 'paused'
            WHEN l.slow_at IS NOT NULL THEN 'slow'
            WHEN clock_timestamp() < ANY (l.slot_leases) THEN 'sending'
            ELSE 'idle' END AS state, l.paused_until
  FROM webhooks AS w JOIN lanes AS l ON l.tenant_id = w.tenant_id
 WHERE w.tenant_id = %(tenant)s AND w.id = webhook_of(%(lane)s) AND l.webhook_id = %(lane)s
"""
_AHEAD = """
SELECT count(*) FROM (
    SELECT FROM open_deliveries AS d
      JOIN open_deliveries AS mine
        ON mine.tenant_id = (SELECT %(tenant)s::uuid) AND mine.id = (SELECT %(delivery)s::uuid)
     WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.webhook_id = mine.webhook_id
       AND d.lease_until IS NULL
       AND (d.priority, d.next_attempt_at) < (mine.priority, mine.next_attempt_at)
       AND d.next_attempt_at <= clock_timestamp()
     LIMIT %(most)s) AS found
"""


_BACKLOGS = """
SELECT w.id, sum(l.events_open + l.replays_open + l.tests_open
                 + count_unnumbered(l.tenant_id, l.webhook_id))::bigint,
       min((SELECT min(next) FROM (
                SELECT (SELECT next_attempt_at FROM open_deliveries AS d
                         WHERE tenant_id = (SELECT %(tenant)s::uuid)
                           AND webhook_id = l.webhook_id
                           AND d.priority = level.priority AND d.fresh = level.fresh
                           AND (d.lease_until IS NULL OR d.lease_until <= clock_timestamp())
                         ORDER BY d.next_attempt_at LIMIT 1) AS next
                  FROM open_levels() AS level) AS first
             WHERE next < clock_timestamp()))
  FROM lanes AS l
  JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = webhook_of(l.webhook_id)
 WHERE l.tenant_id = %(tenant)s AND w.deleted_at IS NULL AND w.id = coalesce(%(webhook)s, w.id)
 GROUP BY w.id
"""


def backlogs(
    session: Session, tenant_id: UUID, webhook_id: UUID | None = None
) -> dict[UUID, tuple[int, datetime | None]]:
    """Return how many deliveries wait at each webhook, and since when one is overdue, if any.

    Of one webhook alone where it is named.
    """
    found = cursor(session).execute(_BACKLOGS, {"tenant": tenant_id, "webhook": webhook_id})
    return {each: (waiting, overdue) for each, waiting, overdue in found}


def summary_of(
    session: Session,
    tenant_id: UUID,
    webhook_id: UUID,
    explanation: str,
    deliveries: list[Delivery],
) -> dict[str, Any]:
    """Return `summary` and `lane` of an event on a webhook, from its newest delivery."""
    key = deliveries[-1].webhook_id if deliveries else webhook_id
    wanted = {"tenant": tenant_id, "lane": key}
    ((state, paused_until),) = cursor(session).execute(_LANE, wanted).fetchall()
    until = paused_until and rfc3339(paused_until)
    summary = explanation
    if deliveries:
        # Why the lane sends nothing now.
        obstacle = _OBSTACLES.get(state, "").format(until=until)
        summary = _summary(session, tenant_id, obstacle, deliveries[-1])
    lane = {"state": state, "until": until if state == LaneState.PAUSED else None}
    return {"summary": summary, "lane": lane}


def _summary(session: Session, tenant_id: UUID, obstacle: str, row: Delivery) -> str:
    last = row.last_attempt
    ended = row.finished_at and rfc3339(row.finished_at)
    times = "one attempt" if row.attempts == 1 else f"{row.attempts} attempts"
    how = ""
    if last is not None:
        how = f" (HTTP {last.status_code})" if last.status_code else f" ({last.outcome})"
    arrived = row.arrived_by_replay is not None
    further = "its event has arrived by a replay" if arrived else "a replay sends it again"
    match Status(row.status):
        case Status.SUCCEEDED:
            return f"It arrived by {times}, recorded at {ended}."
        case Status.FAILED:
            return f"It failed for good after {times}, at {ended}{how}; {further}."
        case Status.CANCELLED:
            return f"It was cancelled at {ended}; {further}."
        case Status.SENDING:
            return f"Attempt {row.attempts + 1} is under way."
        case Status.RETRYING:
            failed = "once" if row.attempts == 1 else f"{row.attempts} times"
            due = row.next_attempt_at and rfc3339(row.next_attempt_at)
            due = f"{due}, {obstacle}" if obstacle else due
            return f"It has failed {failed}{how}; attempt {row.attempts + 1} is due at {due}."
        case Status.PENDING:
            turn = obstacle or _turn(session, tenant_id, row.id)
            return f"It waits for its first attempt, {turn}."


def _turn(session: Session, tenant_id: UUID, delivery_id: UUID) -> str:
    wanted = {"tenant": tenant_id, "delivery": delivery_id, "most": _COUNTED_AT_MOST}
    ahead = cursor(session, scalar_row).execute(_AHEAD, wanted).fetchone()
    if not ahead:
        return "and is the next of this webhook to be sent"
    count = f"{ahead} or more" if ahead == _COUNTED_AT_MOST else str(ahead)
    return f"with {count} others of this webhook before it"


_OBSTACLES: Mapping[str, str] = {
    LaneState.DELETED: "but the webhook was deleted, so it is being cancelled",
    LaneState.DISABLED: "but the webhook is disabled, so it is being cancelled",
    LaneState.HELD: "but the webhook is held, so it is sent once that is released",
    LaneState.PAUSED: "but the webhook is paused until a probe at {until}",
}


MATCHED, FILTERED, DISABLED = 1, 2, 3
NAMES = {MATCHED: "matched", FILTERED: "filtered", DISABLED: "disabled"}

_SIZE = 17


def unpack(decisions: bytes) -> dict[UUID, str]:
    """Return the decision's name for each webhook that existed then, from a packed array."""
    return {
        UUID(bytes=decisions[at : at + 16]): NAMES[decisions[at + 16]]
        for at in range(0, len(decisions), _SIZE)
    }


def match_of(webhook_id: UUID) -> bytes:
    """Return the packed array of an event that one webhook alone gets."""
    return webhook_id.bytes + bytes([MATCHED])


# What the events of a type are about; those of other types are about no row.
_SUBJECTS = {
    EventType.FINDING_CREATED: "fnd",
    EventType.SESSION_COMPLETED: "ses",
    EventType.SESSION_OPENED: "ses",
    EventType.RECORD_CREATED: "rec",
}
_ABSENT = "absent"

# The text of each decision: why a webhook did or did not get the event.
EXPLANATIONS = {
    "matched": "The webhook wanted this type of event, so a delivery was made.",
    "filtered": "The webhook's event_types leave this type out.",
    "disabled": "The webhook was disabled; a bulk replay with the status skipped can send it.",
    _ABSENT: "The webhook did not exist then, or the event was not for it.",
}


def find(session: Session, caller: Caller, event_id: UUID | None) -> Event:
    """Return one event; raises `NotFound` when it does not exist or is no longer kept."""
    event = session.scalars(
        select(Event).where(Event.tenant_id == caller.tenant_id, Event.id == event_id)
    ).one_or_none()
    if event is None:
        raise NotFound("There is no event with this id, or it is older than the history kept.")
    return event


def subjects(session: Session, tenant_id: UUID, event_ids: Collection[UUID]) -> dict[str, str]:
    """Return the id of what each event is about (`fnd_…`), by the event's id (`evt_…`)."""
    found = session.execute(
        select(Event.id, Event.type, Event.subject_id).where(
            Event.tenant_id == tenant_id, Event.id.in_(event_ids)
        )
    )
    return {
        ids.text("evt", event_id): ids.text(_SUBJECTS[EventType(kind)], subject)
        for event_id, kind, subject in found
        if subject and kind in _SUBJECTS
    }


def describe(session: Session, event: Event) -> dict[str, Any]:
    """Return an event with its payload and, for every webhook, the decision and the deliveries.

    At most the newest 500 deliveries.
    """
    decided = unpack(event.decisions)
    deliveries = of_event(session, event.tenant_id, event.id)
    return {
        "id": ids.text("evt", event.id),
        "type": event.type,
        "created_at": rfc3339(event.created_at),
        "payload": json.loads(
            delivery_history.payload_of(session, event.tenant_id, event.id) or b"null"
        ),
        "webhooks": [
            _decided(webhook_id, name, deliveries) for webhook_id, name in decided.items()
        ],
    }


def decision_for(session: Session, event: Event, webhook_id: UUID) -> dict[str, Any]:
    """Return the decision for one webhook, its deliveries of the event and what became of them."""
    name = unpack(event.decisions).get(webhook_id, _ABSENT)
    deliveries = of_event(session, event.tenant_id, event.id, webhook_id)
    return {
        "event_id": ids.text("evt", event.id),
        "event_type": event.type,
        **_decided(webhook_id, name, deliveries),
        **summary_of(session, event.tenant_id, webhook_id, EXPLANATIONS[name], deliveries),
    }


def _decided(webhook_id: UUID, name: str, deliveries: list[Delivery]) -> dict[str, Any]:
    return {
        "webhook_id": ids.text("whk", webhook_id),
        "decision": name,
        "explanation": EXPLANATIONS[name],
        "deliveries": [
            delivery_history.represent(each)
            for each in deliveries
            if ids.webhook_of(each.webhook_id) == webhook_id
        ],
    }


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


def of_event(
    session: Session, tenant_id: UUID, event_id: UUID, webhook_id: UUID | None = None
) -> list[Delivery]:
    """Return the deliveries of one event, oldest first: to one webhook, or to all.

    At most the newest 500.
    """
    wanted = {"tenant": tenant_id, "webhook": webhook_id, **event_values([event_id])}
    found = cursor(session, class_row(Delivery)).execute(_OF_EVENT, wanted)
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
