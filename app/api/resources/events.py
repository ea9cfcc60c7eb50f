"""Events over HTTP: the catalogue of their types, and one event across all webhooks."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import fields as plain

from app.api.http import admission
from app.api.http.auth import READ, READ_TENANT
from app.api.http.paging import DEFAULT_LIMIT, MAX_LIMIT, open_position, seal_position
from app.api.http.routes import Routes
from app.api.http.services import caller, services, transaction
from app.core import findings, sessions
from app.core.delivery import event_types
from app.core.delivery.event_types import Entry, EventType
from app.core.delivery.history import event_feed, event_history
from app.core.delivery.history.delivery_history import DeliverySchema
from app.core.delivery.history.event_feed import Page, Position
from app.core.records import records
from app.errors import FieldError, HistoryRolledBack, Invalid
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

LONGEST_WAIT = 20
NOW = "now"

CATALOGUE: Mapping[EventType, Entry] = {
    EventType.FINDING_CREATED: findings.CREATED,
    EventType.SESSION_COMPLETED: sessions.COMPLETED,
    EventType.RECORD_CREATED: records.CREATED,
    EventType.SESSION_OPENED: sessions.OPENED,
    **event_types.OTHERS,
}

blp = Routes(
    "events",
    __name__,
    url_prefix="/v1",
    description="Events, their types, and why webhooks got them.",
)


class EventTypeSchema(AnswerSchema):
    """An event type: its meaning, and the schema of its `data`."""

    type = fields.Choice(EventType)
    description = fields.Text(1000)
    data_schema = plain.Dict(metadata={"description": "JSON Schema of `data`."})
    example = plain.Dict(metadata={"description": "An example of `data`."})


class EventTypePageSchema(AnswerSchema):
    """All event types."""

    data = plain.List(plain.Nested(EventTypeSchema))
    next_cursor = fields.Text(1000, allow_none=True)


class WebhookDecisionSchema(AnswerSchema):
    """The routing decision for one webhook, and its delivery's status."""

    webhook_id = fields.Id("whk")
    decision = fields.Text(20)
    explanation = fields.Text(500)
    deliveries = plain.List(plain.Nested(DeliverySchema))


class EventSchema(AnswerSchema):
    """An event, with its routing decisions for all webhooks."""

    id = fields.Id("evt")
    type = fields.Choice(EventType)
    created_at = fields.Time()
    payload = plain.Dict(metadata={"description": "The body that every receiver gets."})
    webhooks = plain.List(plain.Nested(WebhookDecisionSchema))


@blp.serves("GET /event-types", READ, EventTypePageSchema)
def list_types() -> dict[str, Any]:
    """List the types of events"""
    data = [{"type": name, **vars(CATALOGUE[name])} for name in EventType]
    return {"data": data, "next_cursor": None}


class FeedArgs(Schema):
    """Query parameters of the event feed: position, filter, and long polling."""

    after = fields.Text(
        4000, description="The last `next_after`; `now`: from this moment; absent: the oldest."
    )
    type = fields.Choice(EventType)
    limit = fields.QueryInteger(
        1, MAX_LIMIT, load_default=DEFAULT_LIMIT, metadata={"default": DEFAULT_LIMIT}
    )
    wait = fields.QueryInteger(
        0,
        LONGEST_WAIT,
        load_default=0,
        description="Seconds to wait for an event if there is none yet (not with `now`).",
        metadata={"default": 0},
    )


class PayloadSchema(AnswerSchema):
    """An event as every receiver gets it."""

    id = fields.Id("evt")
    type = fields.Choice(EventType)
    timestamp = fields.Time()
    data = plain.Dict(metadata={"description": "As `GET /v1/event-types` describes it."})


class FeedSchema(AnswerSchema):
    """A page of the feed."""

    data = fields.Items(fields.Object(PayloadSchema), max_items=MAX_LIMIT)
    next_after = fields.Text(4000, description="Send it as `after`, even if `data` is empty.")


@blp.serves("GET /events", READ, FeedSchema, args=FeedArgs, errors=(410,))
def feed(args: dict[str, Any]) -> Response | dict[str, Any]:
    """Follow all events, without a webhook

    Oldest first. A reader that sends each `next_after` as `after` misses no event. One whose
    transaction commits out of order comes late, and rarely twice: deduplicate by `id`. A filtered
    page may be empty although more follow. A pinned key gets its agent's and principal's events.
    In each web process 32 requests of a key and 128 of a tenant may `wait`; others are 429.
    """
    if args.get("after") == NOW:
        with transaction(snapshot=True) as session:
            return {"data": [], "next_after": _sealed(event_feed.present(session, caller()))}
    found = _page(args)
    if args["wait"] and not found.read:
        ready = _arrival(found.position)
        if (dropped := admission.wait(admission.bounds(caller()), ready, args["wait"])) is not None:
            return dropped
        found = _page(args)
    data = [event_feed.represent(each) for each in found.events]
    return {"data": data, "next_after": _sealed(found.position)}


def _page(args: dict[str, Any]) -> Page:
    position = _position(args)
    try:
        with transaction(snapshot=True) as session:
            return event_feed.page(session, caller(), position, args.get("type"), args["limit"])
    except HistoryRolledBack as error:
        begin = seal_position(error.members["next_after"], _identity())
        raise HistoryRolledBack(error.detail, {**error.members, "next_after": begin}) from None


def _arrival(position: Position) -> Callable[[], bool]:
    """Return a function that checks for an event after `position`, from any thread."""
    database, tenant_id = services().database, caller().tenant_id

    def ready() -> bool:
        with database.raw_transaction(tenant_id) as tx:
            return event_feed.any_after(tx, tenant_id, position)

    return ready


def _position(args: dict[str, Any]) -> Position:
    after = args.get("after")
    if after is None:
        return event_feed.beginning()
    text = open_position(after, _identity())
    if text is None:
        raise Invalid(FieldError("/after", "Query parameter: no next_after of this feed."))
    return Position.read(text)


def _sealed(position: Position) -> str:
    return seal_position(position.text(), _identity())


def _identity() -> str:
    return f"event-feed/{caller().tenant_id}"


@blp.serves("GET /events/<event_id>", READ_TENANT, EventSchema)
def read(event_id: UUID | None) -> dict[str, Any]:
    """Read an event, with the routing decision and the deliveries of every webhook"""
    with transaction(snapshot=True) as session:
        found = event_history.find(session, caller(), event_id)
        return event_history.describe(session, found)
