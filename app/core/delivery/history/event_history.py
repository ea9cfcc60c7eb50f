"""The history of an event across all webhooks: its payload, decisions and deliveries."""

import json
from collections.abc import Collection
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.callers import Caller
from app.core.delivery.event_types import EventType
from app.core.delivery.history import decisions, delivery_history, delivery_summary
from app.core.delivery.history.delivery_history import Listed
from app.errors import NotFound
from app.models import Event

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


def payload_of(session: Session, event: Event) -> bytes:
    """Return the bytes that every receiver of an event gets."""
    found = delivery_history.payload_of(session, event.tenant_id, event.id)
    if found is None:
        raise LookupError(f"event {event.id} has no payload")
    return found


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
    decided = decisions.unpack(event.decisions)
    deliveries = delivery_history.of_event(session, event.tenant_id, event.id)
    return {
        "id": ids.text("evt", event.id),
        "type": event.type,
        "created_at": rfc3339(event.created_at),
        "payload": json.loads(payload_of(session, event)),
        "webhooks": [
            _decided(webhook_id, name, deliveries) for webhook_id, name in decided.items()
        ],
    }


def decision_for(session: Session, event: Event, webhook_id: UUID) -> dict[str, Any]:
    """Return the decision for one webhook, its deliveries of the event and what became of them."""
    name = decisions.unpack(event.decisions).get(webhook_id, _ABSENT)
    deliveries = delivery_history.of_event(session, event.tenant_id, event.id, webhook_id)
    return {
        "event_id": ids.text("evt", event.id),
        "event_type": event.type,
        **_decided(webhook_id, name, deliveries),
        **delivery_summary.of(session, event.tenant_id, webhook_id, EXPLANATIONS[name], deliveries),
    }


def _decided(webhook_id: UUID, name: str, deliveries: list[Listed]) -> dict[str, Any]:
    return {
        "webhook_id": ids.text("whk", webhook_id),
        "decision": name,
        "explanation": EXPLANATIONS[name],
        "deliveries": [
            delivery_history.represent(each)
            for each in deliveries
            if ids.webhook_of(each.row.webhook_id) == webhook_id
        ],
    }
