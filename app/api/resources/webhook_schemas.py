"""Schemas of webhooks: creation, changes, health, secret rotation, accounting."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from marshmallow import ValidationError
from marshmallow import fields as plain

from app import ids
from app.core.delivery import accounting, request_headers
from app.core.delivery.event_types import EventType
from app.core.delivery.lanes.lane_health import REFUSED_DELIVERIES, REFUSED_FOR
from app.core.webhooks.webhook_changes import WebhookStatus
from app.core.webhooks.webhook_secrets import HIDDEN
from app.core.webhooks.webhooks import DEFAULT_MAX_IN_FLIGHT, LARGEST_MAX_IN_FLIGHT, State
from app.lib.outbound.addresses import MAX_URL_LENGTH
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

MAX_DESCRIPTION = 2000
LONGEST_OVERLAP = 7 * 24 * 3600
DEFAULT_OVERLAP = 24 * 3600


class OwnHeaders(fields.Strict):
    """Headers of the receiver's own by name, as `request_headers` sends them."""

    json_schema: Mapping[str, Any] = MappingProxyType(
        {
            "type": "object",
            "maxProperties": request_headers.MOST_OWN,
            "propertyNames": {"pattern": f"^{request_headers.NAME}$"},
            "additionalProperties": {"type": "string", "pattern": f"^{request_headers.VALUE}$"},
        }
    )

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise ValidationError("Send an object of strings.")
        refusal = request_headers.refusal
        if len(value) > request_headers.MOST_OWN:
            most = request_headers.MOST_OWN
            raise ValidationError(f"At most {most} headers; this has {len(value)}.")
        wrong = {
            name: [why]
            for name, text in value.items()
            if (why := refusal(name, text) if isinstance(text, str) else "Send a string.")
        }
        if wrong:
            raise ValidationError(wrong)
        if len({name.lower() for name in value}) != len(value):
            raise ValidationError("Name each header once: upper and lower case are the same.")
        size = sum(len(name) + len(text) for name, text in value.items())
        if size > request_headers.MOST_OWN_BYTES:
            most = request_headers.MOST_OWN_BYTES
            raise ValidationError(f"At most {most} bytes of names and values; this has {size}.")
        return value


def _headers(**options: Any) -> OwnHeaders:
    return OwnHeaders(
        allow_none=True,
        description="Headers of your own by name, sent with every delivery, test and check, such "
        "as `Authorization`; null or `{}`: none. At most 20, with 4 KiB of names and values; "
        "none that HTTP or the service sets itself. No answer shows a value again: it is `***`. "
        "A change replaces all of them; `***` for a value keeps the one that is stored.",
        example={"Authorization": "Bearer <token>"},
        **options,
    )


def _distinct(event_types: Sequence[EventType]) -> None:
    if len(set(event_types)) != len(event_types):
        raise ValidationError("Name each event type once.")


class ConcurrencySchema(AnswerSchema):
    """Concurrent POSTs: how many are in flight, and how many may be."""

    now = fields.Integer(
        0,
        LARGEST_MAX_IN_FLIGHT * ids.MOST_LANES,
        description="POSTs in flight, including those whose outcome is being written.",
    )
    allowed = fields.Integer(
        1,
        LARGEST_MAX_IN_FLIGHT * ids.MOST_LANES,
        description="How many may be in flight: `max_in_flight` a lane unless the receiver was "
        "overloaded. A new webhook begins with 1, and gets 2 more with each 2xx (slow start). "
        "A timeout, a failed connection, or an answer of 429, 502, 503 or 504 halves it, to 1 "
        "at least; from then on it grows by 1 with each batch of 2xx (AIMD). Another URL "
        "begins anew. Fewer are in flight if fewer deliveries wait, or while other slow "
        "webhooks occupy the worker.",
    )


class LaneHealthSchema(AnswerSchema):
    """The recent health of the webhook's deliveries."""

    state = fields.Choice(
        State,
        description="Of what applies, the last: `ok`; `slow`; `refusing` (`refusing_since`); "
        "`failing` (`failing_since`); `paused` until `paused_until`; `held`; `disabled`.",
    )
    consecutive_failures = fields.Count()
    paused_until = fields.Time(
        allow_none=True, description="When the next probe goes out; null: it is not paused."
    )
    failing_since = fields.Time(
        allow_none=True,
        description="When the endpoint failed first (no connection, TLS, timeout, 429, 5xx)"
        " and has only failed since; null: it is not failing.",
    )
    refusing_since = fields.Time(
        allow_none=True,
        description="Since when the receiver has accepted nothing, although it answers: none of "
        f"the last {REFUSED_DELIVERIES} different deliveries got a 2xx; where it never gave one, "
        f"for {REFUSED_FOR.total_seconds() / 60:.0f} minutes. Null: it does not refuse. A delivery "
        "that is refused among others that arrive changes nothing. After `DISABLE_AFTER_DAYS` the "
        "webhook is disabled; the first 2xx ends it, and what waits comes forward.",
    )
    refused_status = fields.Integer(
        100, 599, allow_none=True, description="The status by which it refused last; else null."
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
    url = fields.Text(
        MAX_URL_LENGTH,
        description="https, to a public address; without credentials and fragment. Path and query "
        "are sent as they are written, so a space is `%20` and a bare % is `%25`. A key with the "
        "role `read` sees them as `/***`.",
        example="https://hooks.example.com/records",
    )
    headers = plain.Dict(
        allow_none=True,
        metadata={
            "description": "Its headers of your own by name; no value is shown, each is `***`. "
            "null: the service lacks the master key that sealed them, and shows the URL's host "
            "alone.",
            "example": {"Authorization": HIDDEN},
            "additionalProperties": {"const": HIDDEN},
        },
    )
    event_types = fields.Items(
        fields.Choice(EventType),
        min_items=1,
        max_items=len(EventType),
        allow_none=True,
        validate=_distinct,
        description="The event types to send; null: all but `record.created` and `session.opened`, "
        "which only go to who names them.",
        metadata={"uniqueItems": True},
    )
    description = fields.Text(MAX_DESCRIPTION, allow_none=True)
    max_in_flight = fields.Integer(
        1,
        LARGEST_MAX_IN_FLIGHT,
        description="The largest number of concurrent POSTs. The number allowed at present follows "
        "the receiver's behaviour: `health.concurrency`. A lower number applies within a "
        "second, to POSTs that are not sent yet.",
    )
    lanes = fields.Integer(
        1,
        ids.MOST_LANES,
        description="How many lanes: queues that send beside each other, with `max_in_flight` "
        "POSTs each. With several, the events of a session go by one lane, those of no session by "
        "their own id. Each lane numbers its events itself: `x-service-lane` names it, and the "
        "feed is read lane by lane (`lane`). A change concerns new events: what waits stays in "
        "its lane, so for as long as that takes an event may overtake earlier ones of its "
        "session. One lane carries some thousands a second.",
    )
    status = fields.Choice(WebhookStatus)
    disabled_reason = fields.Text(
        20,
        allow_none=True,
        description="`requested`, `gone` (the receiver said 410), `failing` or `refusing`.",
    )
    held = fields.Boolean(
        description="While true, events are accepted and numbered, but only tests and single "
        "replays are sent; nothing counts as failing. Once false again, the backlog is sent, a "
        "few at once at first.",
    )
    held_since = fields.Time(allow_none=True)
    health = fields.Object(LaneHealthSchema)
    created_at = fields.Time()
    updated_at = fields.Time()


class NewWebhookSchema(Schema):
    """A webhook to create."""

    url = WebhookSchema.field("url", required=True)
    headers = _headers(load_default=None)
    event_types = WebhookSchema.field("event_types", load_default=None)
    description = WebhookSchema.field("description", load_default=None)
    max_in_flight = WebhookSchema.field("max_in_flight", load_default=DEFAULT_MAX_IN_FLIGHT)
    lanes = WebhookSchema.field("lanes", load_default=1)


class WebhookChangeSchema(Schema):
    """The fields to change; those not sent stay."""

    url = WebhookSchema.field("url")
    headers = _headers()
    event_types = WebhookSchema.field("event_types")
    description = WebhookSchema.field("description")
    max_in_flight = WebhookSchema.field("max_in_flight")
    lanes = WebhookSchema.field("lanes")
    status = WebhookSchema.field("status")
    held = WebhookSchema.field("held")


class WebhookWithSecretSchema(WebhookSchema):
    """A webhook with its secret, which is shown only once."""

    secret = fields.Text(80, metadata={"pattern": "^whsec_[0-9A-Za-z+/]{43}=$"})


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

    arrived_by_replay = fields.Count(
        description="Of `failed`: the events that a replay has delivered since."
    )
    cancelled_arrived_by_replay = fields.Count(
        description="Of `cancelled`: the events that a replay has delivered since."
    )
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
