"""Schemas of deliveries: attempts, decisions, replays."""

import enum
from typing import Any

from marshmallow import ValidationError
from marshmallow import fields as plain

from app.api.http.requests import fields
from app.api.http.requests.schemas import Schema
from app.core.delivery.event_types import EventType
from app.core.delivery.history.delivery_filters import Status
from app.core.replay import replay_selection

FASTEST_REPLAY = 10_000
COUNT_LIMITS = (0, 2**53 - 1)


class OneOrMore(fields.Choice):
    """One value of an enumeration, or a list of them; read as a frozenset."""

    def __init__(self, choices: type[enum.StrEnum], **options: Any) -> None:
        super().__init__(choices, **options)
        one = self.json_schema
        many = {"type": "array", "items": one, "minItems": 1, "maxItems": len(choices)}
        self.json_schema = {"oneOf": [one, many]}

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> Any:
        values = value if isinstance(value, list) else [value]
        if not 1 <= len(values) <= len(self.choices):
            raise ValidationError(f"Send 1 to {len(self.choices)} values; this has {len(values)}.")
        read = super()._deserialize
        return frozenset(read(each, *arguments, **options) for each in values)


class DecisionArgs(Schema):
    """Which event to explain."""

    event_id = fields.Id("evt", required=True)


class TimingsSchema(Schema):
    """How long each phase took, in milliseconds; null for what did not happen."""

    dns = plain.Float(required=True, allow_none=True)
    connect = plain.Float(required=True, allow_none=True)
    tls = plain.Float(required=True, allow_none=True)
    first_byte = plain.Float(required=True, allow_none=True)
    total = plain.Float(required=True, allow_none=True)


class AttemptSummarySchema(Schema):
    """One attempt."""

    number = fields.Integer(*COUNT_LIMITS, required=True)
    at = fields.Time(required=True)
    outcome = fields.Text(50, required=True)
    status = fields.Integer(
        0,
        999,
        required=True,
        allow_none=True,
        metadata={"description": "The answer's HTTP status."},
    )
    error = fields.Text(10_000, required=True, allow_none=True)
    timings = fields.Object(TimingsSchema, required=True)


class AttemptSchema(AttemptSummarySchema):
    """One attempt, with what the receiver answered."""

    headers = plain.List(plain.List(plain.String()), required=True, allow_none=True)
    body = plain.String(
        required=True, allow_none=True, metadata={"description": "Its first 4 KiB, as text."}
    )
    body_base64 = plain.String(
        required=True,
        allow_none=True,
        metadata={"description": "The same bytes exactly, where they are not UTF-8."},
    )


class DeliverySchema(Schema):
    """One event on its way to one webhook."""

    id = fields.Id("dlv", required=True)
    webhook_id = fields.Id("whk", required=True)
    event_id = fields.Id("evt", required=True)
    event_type = fields.Choice(EventType, required=True)
    kind = fields.Text(10, required=True, metadata={"description": "`event`, `replay` or `test`."})
    sequence = fields.Integer(
        1,
        2**53 - 1,
        required=True,
        allow_none=True,
        metadata={"description": "This webhook's number of the event; null: not numbered (yet)."},
    )
    status = fields.Choice(Status, required=True)
    replay_of = fields.Id("dlv", required=True, allow_none=True)
    job_id = fields.Id("job", required=True, allow_none=True)
    attempt_count = fields.Integer(*COUNT_LIMITS, required=True)
    last_attempt = fields.Object(AttemptSummarySchema, required=True, allow_none=True)
    next_attempt_at = fields.Time(required=True, allow_none=True)
    created_at = fields.Time(required=True)
    finished_at = fields.Time(required=True, allow_none=True)


class DeliveryDetailSchema(DeliverySchema):
    """A delivery with its payload and every attempt."""

    payload = plain.Dict(
        required=True, allow_none=True, metadata={"description": "null: kept no longer."}
    )
    attempts = plain.List(plain.Nested(AttemptSchema), required=True)


class DecisionSchema(Schema):
    """Why a webhook did or did not get an event."""

    event_id = fields.Id("evt", required=True)
    event_type = fields.Choice(EventType, required=True)
    webhook_id = fields.Id("whk", required=True)
    decision = fields.Text(20, required=True)
    explanation = fields.Text(500, required=True)
    deliveries = plain.List(plain.Nested(DeliverySchema), required=True)


class BulkReplaySchema(Schema):
    """Which deliveries to send again."""

    status = OneOrMore(
        replay_selection.Status,
        load_default=frozenset({replay_selection.Status.FAILED}),
        metadata={"description": "One or a list; `skipped`: what happened while it was disabled."},
    )
    since = fields.Time(metadata={"description": "Created at this moment or later."})
    until = fields.Time(metadata={"description": "Created before this moment."})
    rate = fields.Integer(
        1, FASTEST_REPLAY, metadata={"description": "At most this many a second; absent: no limit."}
    )
    dry_run = fields.Boolean(
        load_default=False, metadata={"description": "Only count what would be sent again."}
    )


class CountSchema(Schema):
    """How many events would be sent again."""

    count = fields.Integer(*COUNT_LIMITS, required=True)
