"""Deliveries over HTTP: the history of a webhook, its catch-up feed, tests and replays."""

import enum
from typing import Any
from urllib.parse import urlencode

from flask import Response, request
from marshmallow import ValidationError
from marshmallow import fields as plain

from app import ids
from app.api.http.access.auth import caller, requires
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, page
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.json_responses import answer
from app.api.http.services import services
from app.api.http.transactions import transaction
from app.api.resources.jobs import JobSchema
from app.core.callers import Role
from app.core.delivery.event_types import EventType
from app.core.delivery.history import catch_up, delivery_history, event_history
from app.core.delivery.history.delivery_history import Filters
from app.core.jobs import control as job_control
from app.core.replay import bulk_replay, fire_test_event, replay, replay_selection
from app.core.replay.replay_selection import Wanted
from app.core.webhooks import webhooks
from app.errors import FieldError, Invalid

blp = Blueprint(
    "deliveries",
    __name__,
    url_prefix="/v1/webhooks/<webhook_id>",
    description="What was sent to a webhook, what became of it, and sending it again.",
)

FASTEST_REPLAY = 10_000
_COUNT_LIMITS = (0, 2**53 - 1)


class Statuses(fields.Items):
    """Statuses in a query string: repeated, or in one value with commas."""

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> list[Any]:
        named = [part for text in value for part in text.split(",")]
        return super()._deserialize(named, *arguments, **options)


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


class HistoryArgs(PageArgs):
    """Which deliveries to list; `after` asks for the catch-up feed instead."""

    status = Statuses(
        fields.Choice(delivery_history.Status),
        min_items=1,
        max_items=len(delivery_history.Status),
        metadata={"description": "Any of these: repeat it, or put commas between."},
    )
    event_type = fields.Choice(EventType)
    since = fields.Time(metadata={"description": "Created at this moment or later."})
    until = fields.Time(metadata={"description": "Created before this moment."})
    after = fields.QueryInteger(
        *_COUNT_LIMITS,
        metadata={
            "description": "The last `sequence` you have (0: none). Answers the events after it, "
            "oldest first, with payloads; go on with `next_after` until `data` is empty. Goes "
            "with `limit` and nothing else."
        },
    )


class DecisionArgs(fields.Schema):
    """Which event to explain."""

    event_id = fields.Id("evt", required=True)


class TimingsSchema(fields.Schema):
    """How long each phase took, in milliseconds; null for what did not happen."""

    dns = plain.Float(required=True, allow_none=True)
    connect = plain.Float(required=True, allow_none=True)
    tls = plain.Float(required=True, allow_none=True)
    first_byte = plain.Float(required=True, allow_none=True)
    total = plain.Float(required=True, allow_none=True)


class AttemptSummarySchema(fields.Schema):
    """One attempt."""

    number = fields.Integer(*_COUNT_LIMITS, required=True)
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


class DeliverySchema(fields.Schema):
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
    status = fields.Choice(delivery_history.Status, required=True)
    replay_of = fields.Id("dlv", required=True, allow_none=True)
    job_id = fields.Id("job", required=True, allow_none=True)
    attempt_count = fields.Integer(*_COUNT_LIMITS, required=True)
    last_attempt = fields.Object(AttemptSummarySchema, required=True, allow_none=True)
    next_attempt_at = fields.Time(required=True, allow_none=True)
    created_at = fields.Time(required=True)
    finished_at = fields.Time(required=True, allow_none=True)


class ListedDeliverySchema(DeliverySchema):
    """A delivery; the catch-up feed has its payload too."""

    payload = plain.Dict()


class DeliveryDetailSchema(DeliverySchema):
    """A delivery with its payload and every attempt."""

    payload = plain.Dict(
        required=True, allow_none=True, metadata={"description": "null: kept no longer."}
    )
    attempts = plain.List(plain.Nested(AttemptSchema), required=True)


class DeliveryPageSchema(fields.Schema):
    """One page of deliveries; the catch-up feed has `next_after` in place of a cursor."""

    data = fields.Items(fields.Object(ListedDeliverySchema), required=True, max_items=200)
    next_cursor = fields.Text(1000, required=True, allow_none=True)
    next_after = fields.Integer(*_COUNT_LIMITS)


class DecisionSchema(fields.Schema):
    """Why a webhook did or did not get an event."""

    event_id = fields.Id("evt", required=True)
    event_type = fields.Choice(EventType, required=True)
    webhook_id = fields.Id("whk", required=True)
    decision = fields.Text(20, required=True)
    explanation = fields.Text(500, required=True)
    deliveries = plain.List(plain.Nested(DeliverySchema), required=True)


class BulkReplaySchema(fields.Schema):
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


class CountSchema(fields.Schema):
    """How many events would be sent again."""

    count = fields.Integer(*_COUNT_LIMITS, required=True)


@blp.route("/deliveries", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(HistoryArgs, location="query")
@blp.response(200, DeliveryPageSchema)
@blp.alt_response(410, "GONE")
def list_deliveries(args: dict[str, Any], webhook_id: str) -> Response:
    """List a webhook's deliveries, newest first, or catch up after a sequence number

    Replays and tests are in the list and not in the feed. With `after` older than the history kept
    the answer is 410 with `first_available`. A page of the feed may hold fewer than `limit` events.
    """
    return _history(args, webhook_id) if "after" not in args else _feed(args, webhook_id)


@blp.route("/deliveries/<delivery_id>", methods=["GET"])
@requires(Role.READ, whole_tenant=True)
@blp.response(200, DeliveryDetailSchema)
def read(webhook_id: str, delivery_id: str) -> Response:
    """Read a delivery with its payload and every attempt"""
    with transaction(snapshot=True) as session:
        tenant_id = caller().tenant_id
        known = webhooks.require_history(session, caller(), ids.parse("whk", webhook_id))
        found = delivery_history.find(session, tenant_id, known, ids.parse("dlv", delivery_id))
        return answer(delivery_history.describe(session, tenant_id, found))


@blp.route("/decisions", methods=["GET"])
@requires(Role.READ, whole_tenant=True)
@blp.arguments(DecisionArgs, location="query")
@blp.response(200, DecisionSchema)
def decisions(args: dict[str, Any], webhook_id: str) -> Response:
    """Say why a webhook did or did not get an event"""
    with transaction(snapshot=True) as session:
        known = webhooks.require_history(session, caller(), ids.parse("whk", webhook_id))
        event = event_history.find(session, caller(), args["event_id"])
        return answer(event_history.decision_for(session, event, known))


@blp.route("/test", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.response(202, DeliverySchema)
def test(webhook_id: str) -> Response:
    """Send a test event to a webhook

    It is sent whatever `event_types` says, before everything else, and even while the webhook is
    paused. A disabled webhook answers 409.
    """
    with transaction() as session:
        return once(
            session,
            202,
            lambda: delivery_history.represent(
                fire_test_event.fire(session, caller(), ids.parse("whk", webhook_id))
            ),
        )


@blp.route("/deliveries/<delivery_id>/replay", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.response(202, DeliverySchema)
def replay_one(webhook_id: str, delivery_id: str) -> Response:
    """Send a delivery's event again, at once

    It is a new delivery (`replay_of`) of the same event id, sent even while the webhook is paused.
    A disabled webhook answers 409.
    """
    webhook, delivery = ids.parse("whk", webhook_id), ids.parse("dlv", delivery_id)
    with transaction() as session:
        return once(
            session,
            202,
            lambda: delivery_history.represent(replay.replay(session, caller(), webhook, delivery)),
        )


@blp.route("/replay", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.arguments(BulkReplaySchema)
@blp.response(202, JobSchema)
@blp.alt_response(200, schema=CountSchema)
def replay_many(body: dict[str, Any], webhook_id: str) -> Response:
    """Send again what failed, was cancelled, or was skipped while the webhook was disabled

    Leaves out events that have arrived since or are waiting already. A job makes the replays, which
    go out after live events; with `dry_run` the answer is 200 and their number. A disabled webhook
    answers 409.
    """
    since, until = body.get("since"), body.get("until")
    if since is not None and until is not None and since >= until:
        raise Invalid(FieldError("/until", "Send a moment after `since`."))
    wanted = Wanted(body["status"], since, until)
    webhook = ids.parse("whk", webhook_id)
    with transaction() as session:
        if body["dry_run"]:
            return answer({"count": bulk_replay.preview(session, caller(), webhook, wanted)})
        return once(
            session,
            202,
            lambda: job_control.represent(
                bulk_replay.start(session, caller(), webhook, wanted, rate=body.get("rate"))
            ),
        )


def _history(args: dict[str, Any], webhook_id: str) -> Response:
    filters = Filters(
        frozenset(args.get("status", ())),
        args.get("event_type"),
        args.get("since"),
        args.get("until"),
    )
    with transaction(snapshot=True) as session:
        known = webhooks.require_history(session, caller(), ids.parse("whk", webhook_id))
        return page(
            args,
            lambda before, limit: delivery_history.page(
                session, caller().tenant_id, known, filters, before=before, limit=limit
            ),
            delivery_history.represent,
        )


def _feed(args: dict[str, Any], webhook_id: str) -> Response:
    others = sorted(args.keys() - {"after", "limit"})
    if others:
        text = "Query parameter: this cannot be combined with after."
        raise Invalid(*(FieldError(f"/{name}", text) for name in others))
    with transaction() as session:
        known = webhooks.require_history(session, caller(), ids.parse("whk", webhook_id))
        entries = catch_up.after(
            session, caller().tenant_id, known, args["after"], limit=args["limit"]
        )
        data = [catch_up.represent(entry) for entry in entries]
    next_after = data[-1]["sequence"] if data else args["after"]
    body = {"data": data, "next_cursor": None, "next_after": next_after}
    return answer(body, headers={"Link": _feed_link(next_after, args["limit"])} if data else {})


def _feed_link(after: int, limit: int) -> str:
    query = urlencode({"after": after, "limit": limit})
    return f'<{services().settings.base_url}{request.path}?{query}>; rel="next"'
