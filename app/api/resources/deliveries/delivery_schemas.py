"""Schemas of deliveries: attempts, decisions."""

from marshmallow import fields as plain

from app.api.http.requests import fields
from app.api.http.requests.schemas import AnswerSchema, Schema
from app.core.delivery.event_types import EventType
from app.core.delivery.history.delivery_filters import Status
from app.core.delivery.history.delivery_summary import LaneState


class DecisionArgs(Schema):
    """The event to explain."""

    event_id = fields.Id("evt", required=True)


class TimingsSchema(AnswerSchema):
    """Duration of each phase in milliseconds; null for a phase that did not happen."""

    dns = plain.Float(allow_none=True)
    connect = plain.Float(allow_none=True)
    tls = plain.Float(allow_none=True)
    first_byte = plain.Float(allow_none=True)
    total = plain.Float(allow_none=True)


class AttemptSummarySchema(AnswerSchema):
    """A delivery attempt."""

    number = fields.Count(example=2)
    at = fields.Time()
    outcome = fields.Text(50, example="refused")
    status = fields.Integer(
        0,
        999,
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


class DeliverySchema(AnswerSchema):
    """A delivery of one event to one webhook."""

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


class DeliveryDetailSchema(DeliverySchema):
    """A delivery with its payload and every attempt."""

    payload = plain.Dict(allow_none=True, metadata={"description": "null: no longer stored."})
    attempts = plain.List(plain.Nested(AttemptSchema))


class LaneSchema(AnswerSchema):
    """The state of a webhook's lane; `until` is when the next probe of a paused one goes out."""

    state = fields.Choice(LaneState)
    until = fields.Time(allow_none=True)


class DecisionSchema(AnswerSchema):
    """Why a webhook did or did not get an event."""

    event_id = fields.Id("evt")
    event_type = fields.Choice(EventType)
    webhook_id = fields.Id("whk")
    decision = fields.Text(20)
    explanation = fields.Text(500)
    summary = fields.Text(
        500,
        description="Its outcome so far, the lane's state, and when it is tried next.",
        example="It has failed once (HTTP 503); attempt 2 is due at 2026-01-31T12:00:05.000000Z.",
    )
    lane = fields.Object(LaneSchema)
    deliveries = plain.List(plain.Nested(DeliverySchema))
