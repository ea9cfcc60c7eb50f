"""Schemas of webhooks: creation, changes, health, secret rotation, accounting."""

from collections.abc import Sequence
from typing import Any

from marshmallow import ValidationError

from app.api.http.paging import page_schema
from app.api.http.requests import fields
from app.api.http.requests.schemas import AnswerSchema, Schema
from app.core.delivery import accounting
from app.core.delivery.event_types import EventType
from app.core.webhooks.webhook_changes import Status
from app.core.webhooks.webhooks import DEFAULT_MAX_IN_FLIGHT
from app.lib.outbound.addresses import MAX_URL_LENGTH

MOST_IN_FLIGHT = 64
MAX_DESCRIPTION = 2000
LONGEST_OVERLAP = 7 * 24 * 3600
DEFAULT_OVERLAP = 24 * 3600

_URL: dict[str, Any] = {
    "description": "https, to a public address; without credentials and fragment. Path and query "
    "are sent as they are written, so a space is `%20` and a bare % is `%25`. A key with the role "
    "`read` sees them as `/***`.",
    "example": "https://hooks.example.com/records",
}
_MAX_IN_FLIGHT: dict[str, Any] = {
    "description": "The largest number of concurrent POSTs. The number allowed at present follows "
    "the receiver's behaviour: `health.concurrency`. A lower number applies within a "
    "second, to POSTs that are not sent yet."
}
_HELD: dict[str, Any] = {
    "description": "While true, events are accepted and numbered, but only tests and single "
    "replays are sent; nothing counts as failing. Once false again, the backlog is sent, a "
    "few at once at first."
}


def _distinct(event_types: Sequence[EventType]) -> None:
    if len(set(event_types)) != len(event_types):
        raise ValidationError("Name each event type once.")


def _event_types(**options: Any) -> fields.Items:
    return fields.Items(
        fields.Choice(EventType),
        min_items=1,
        max_items=len(EventType),
        allow_none=True,
        validate=_distinct,
        description="The event types to send; null: all.",
        metadata={"uniqueItems": True},
        **options,
    )


class NewWebhookSchema(Schema):
    """A webhook to create."""

    url = fields.Text(MAX_URL_LENGTH, required=True, metadata=_URL)
    event_types = _event_types(load_default=None)
    description = fields.Text(MAX_DESCRIPTION, allow_none=True, load_default=None)
    max_in_flight = fields.Integer(
        1, MOST_IN_FLIGHT, load_default=DEFAULT_MAX_IN_FLIGHT, metadata=_MAX_IN_FLIGHT
    )


class WebhookChangeSchema(Schema):
    """The fields to change; those not sent stay."""

    url = fields.Text(MAX_URL_LENGTH, metadata=_URL)
    event_types = _event_types()
    description = fields.Text(MAX_DESCRIPTION, allow_none=True)
    max_in_flight = fields.Integer(1, MOST_IN_FLIGHT, metadata=_MAX_IN_FLIGHT)
    status = fields.Choice(Status)
    held = fields.Boolean(metadata=_HELD)


class ConcurrencySchema(AnswerSchema):
    """Concurrent POSTs: how many are in flight, and how many may be."""

    now = fields.Integer(
        0,
        MOST_IN_FLIGHT,
        description="POSTs in flight, including those whose outcome is being written.",
    )
    allowed = fields.Integer(
        1,
        MOST_IN_FLIGHT,
        description="How many may be in flight: `max_in_flight` unless the receiver was "
        "overloaded. A new webhook begins with 2, and gets 2 more with each 2xx (slow start). "
        "A timeout, a failed connection, or an answer of 429, 502, 503 or 504 halves it, to 1 "
        "at least; from then on it grows by 1 with each batch of 2xx (AIMD). Another URL "
        "begins anew. Fewer are in flight if fewer deliveries wait, or while other slow "
        "webhooks occupy the worker.",
    )


class LaneHealthSchema(AnswerSchema):
    """The recent health of the webhook's deliveries."""

    consecutive_failures = fields.Count()
    paused_until = fields.Time(
        allow_none=True, description="When the next probe goes out; null: it is not paused."
    )
    failing_since = fields.Time(
        allow_none=True,
        description="When the endpoint failed first (no connection, TLS, timeout, 429, 5xx)"
        " and has only failed since; null: it is not failing.",
    )
    last_success_at = fields.Time(allow_none=True)
    slow = fields.Boolean(
        description="Whether a POST took over a second, and none since was answered with 2xx "
        "sooner. Part of the worker's places is reserved for quick webhooks; slow ones share "
        "the others, and their `concurrency` is not lowered."
    )
    concurrency = fields.Object(ConcurrencySchema)


class WebhookSchema(AnswerSchema):
    """A webhook, without its secret."""

    id = fields.Id("whk")
    url = fields.Text(MAX_URL_LENGTH, metadata=_URL)
    event_types = _event_types()
    description = fields.Text(MAX_DESCRIPTION, allow_none=True)
    max_in_flight = fields.Integer(1, MOST_IN_FLIGHT, metadata=_MAX_IN_FLIGHT)
    status = fields.Choice(Status)
    disabled_reason = fields.Text(
        20, allow_none=True, description="`requested`, `gone` (the receiver said 410) or `failing`."
    )
    held = fields.Boolean(metadata=_HELD)
    held_since = fields.Time(allow_none=True)
    health = fields.Object(LaneHealthSchema)
    created_at = fields.Time()
    updated_at = fields.Time()


class WebhookWithSecretSchema(WebhookSchema):
    """A webhook with its secret, which is shown only once."""

    secret = fields.Text(80, metadata={"pattern": "^whsec_[0-9A-Za-z+/]{43}=$"})


WebhookPageSchema = page_schema(WebhookSchema)


class RotationSchema(Schema):
    """Rotation of a webhook's secret."""

    overlap_seconds = fields.Integer(
        0,
        LONGEST_OVERLAP,
        load_default=DEFAULT_OVERLAP,
        description="How long the current secret signs beside the new one.",
    )


class LineSchema(AnswerSchema):
    """A line of the accounting."""

    accepted = fields.Count()
    succeeded = fields.Count()
    failed = fields.Count()
    cancelled = fields.Count()
    pending = fields.Count()


class AccountingSchema(LineSchema):
    """The accounting of a webhook: its events, with separate lines for tests and replays."""

    balanced = fields.Boolean(
        description="On every line: accepted = succeeded + failed + cancelled + pending; "
        "and if `counted`, the scan found as many waiting as the running counters say."
    )
    counted = fields.Boolean(
        description="Whether `pending` comes from a scan of waiting deliveries. Beyond "
        f"{accounting.SCANNED_AT_MOST:,} it comes from running counters, "
        "unless `exact` is asked for."
    )
    tests = fields.Object(LineSchema)
    replays = fields.Object(LineSchema)


class AccountingArgs(Schema):
    """Query parameters of the accounting."""

    exact = fields.QueryBoolean(
        load_default=False,
        description="Compute `pending` by a scan of all waiting deliveries, however many: a "
        "million take about 0.2 s.",
        metadata={"default": False},
    )
