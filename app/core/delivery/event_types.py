"""The catalogue of event types: the meaning of each, and the JSON Schema of its `data`.

The schemas name every field that is sent today. Fields may be added later, so the schemas allow
others, and receivers should ignore unknown fields.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app import ids
from app.schemas.schema import object_schema


class EventType(enum.StrEnum):
    """The types of events that a webhook can subscribe to."""

    FINDING_CREATED = "finding.created"
    SESSION_COMPLETED = "session.completed"
    RECORD_CREATED = "record.created"
    SESSION_OPENED = "session.opened"
    WEBHOOK_TEST = "webhook.test"
    WEBHOOK_FAILING = "webhook.failing"
    WEBHOOK_DISABLED = "webhook.disabled"
    AUDIT_CHAIN_BROKEN = "audit.chain_broken"
    HISTORY_ROLLED_BACK = "history.rolled_back"


@dataclass(frozen=True)
class Entry:
    """The catalogue's entry of one type; `example` is a `data` that is valid by the schema."""

    description: str
    data_schema: dict[str, Any]
    example: dict[str, Any]


_TEXT = {"type": "string"}
_TIME = {"type": "string", "format": "date-time"}
_TIME_OR_NULL = {**_TIME, "type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}
_WEBHOOK = (ids.json_schema("whk"), "whk_019a0b7c2a0b7c0d9e1f2a3b4c5d6e7f")


def _entry(description: str, **members: tuple[Mapping[str, Any], Any]) -> Entry:
    """Return the entry of a type whose `data` has these members: a JSON Schema, an example."""
    schemas = {name: schema for name, (schema, _) in members.items()}
    examples = {name: example for name, (_, example) in members.items()}
    return Entry(description, object_schema(schemas), examples)


_TEST = _entry(
    "A test delivery, or a check of the receiver, was requested. It goes to that webhook "
    "alone, regardless of its event_types.",
    webhook_id=_WEBHOOK,
    message=(_TEXT, "This is a test delivery. Nothing has happened."),
    check=(
        {
            "enum": [None, "valid", "tampered", "stale", "repeated"],
            "description": "The kind of check; null: a test delivery. Answer as to any other "
            "event: a request that is not genuine also says so here.",
        },
        None,
    ),
)

WARNING = (
    "The endpoint has failed every attempt since failing_since. If that goes on until "
    "disabled_from, the webhook is disabled and what it has open is cancelled."
)
_FAILING = _entry(
    "A webhook's receiver has accepted nothing for half of the time after which the webhook is "
    "disabled: it could not be reached, timed out, answered 429 or 5xx, or refused whatever was "
    "sent (3xx, 4xx). Sent once to the tenant's other webhooks.",
    webhook_id=_WEBHOOK,
    detail=(_TEXT, WARNING),
    failing_since=(_TIME, "2026-01-29T00:00:00.123456Z"),
    refusing_since=(
        {
            **_TIME_OR_NULL,
            "description": "The same time if the receiver answers and refuses; else null.",
        },
        "2026-01-29T00:00:00.123456Z",
    ),
    status_code=(
        {
            "type": ["integer", "null"],
            "description": "The status by which it refused last; null unless it refuses.",
        },
        401,
    ),
    failed_attempts=(_COUNT, 231),
    disabled_from=(
        {
            **_TIME,
            "description": "Earliest time at which the webhook is disabled if this goes on.",
        },
        "2026-02-03T00:00:00.123456Z",
    ),
)

_DISABLED = _entry(
    "A webhook was disabled because its receiver answered 410 Gone, or had accepted nothing for "
    "days. Sent to the tenant's other webhooks.",
    webhook_id=_WEBHOOK,
    reason=({"enum": ["gone", "failing", "refusing"]}, "gone"),
    detail=(_TEXT, "The receiver answered 410 Gone."),
    cancelled_deliveries=(_COUNT, 12),
    disabled_at=(_TIME, "2026-01-31T12:00:00.123456Z"),
)

_CHAIN_BROKEN = _entry(
    "The audit chain does not verify: an entry was changed, removed or inserted. Sent once for "
    "each distinct break.",
    seq=(
        {
            "type": "integer",
            "minimum": 1,
            "description": "Sequence number of the first wrong entry.",
        },
        4711,
    ),
    reason=(_TEXT, "bad_hash"),
    expected=(_TEXT, "1f3b5a0c9e7d42b68a1f03c5d7e9b2461f3b5a0c9e7d42b68a1f03c5d7e9b246"),
    found=(_TEXT, "9c0d8e2f4a6b1c3d5e7f90a2b4c6d8e09c0d8e2f4a6b1c3d5e7f90a2b4c6d8e0"),
    detected_at=(_TIME, "2026-01-31T12:00:00.123456Z"),
)

_LOST = (
    "The database lost the end of its history: ask each feed with the epoch or position you have."
)
_ROLLED_BACK = _entry(
    "The database lost the end of its history, by a failover or a restored backup: events that "
    "were sent are gone, and their sequence numbers belong to others. Sent to every webhook, "
    "regardless of its event_types. Ask the catch-up feed with the epoch that you know, or the "
    "feed of all events with your position: the answer names where to begin.",
    epoch=(
        {**ids.json_schema("epo"), "description": "The epoch that began."},
        "epo_019a0b7c2a0b7c0d9e1f2a3b4c5d6e7f",
    ),
    began_at=(_TIME, "2026-01-31T12:00:00.123456Z"),
    detail=(_TEXT, _LOST),
    lost_since=(
        {
            **_TIME_OR_NULL,
            "description": "What was accepted before is not lost; null: not known.",
        },
        "2026-01-31T11:59:05.123456Z",
    ),
    lost_until=(
        {**_TIME_OR_NULL, "description": "A moment that is lost; null: not known."},
        "2026-01-31T11:59:50.123456Z",
    ),
)

OTHERS: Mapping[EventType, Entry] = {
    EventType.WEBHOOK_TEST: _TEST,
    EventType.WEBHOOK_FAILING: _FAILING,
    EventType.WEBHOOK_DISABLED: _DISABLED,
    EventType.AUDIT_CHAIN_BROKEN: _CHAIN_BROKEN,
    EventType.HISTORY_ROLLED_BACK: _ROLLED_BACK,
}
"""The types whose `data` is no resource; a resource's entry stands beside its schema."""
