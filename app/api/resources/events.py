"""Events over HTTP: the catalogue of their types, and one event across all webhooks."""

from typing import Any

from flask import Response
from marshmallow import fields as plain

from app import ids
from app.api.http.access.auth import caller, requires
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.schemas import Schema
from app.api.http.responses.json_responses import answer
from app.api.http.transactions import transaction
from app.api.resources.delivery_schemas import DeliverySchema
from app.core.callers import Role
from app.core.delivery import event_types
from app.core.delivery.event_types import EventType
from app.core.delivery.history import event_history

blp = Blueprint("events", __name__, url_prefix="/v1", description="What webhooks are told of.")


class EventTypeSchema(Schema):
    """One type of event: what it means and what its `data` holds."""

    type = fields.Choice(EventType, required=True)
    description = fields.Text(1000, required=True)
    data_schema = plain.Dict(required=True, metadata={"description": "JSON Schema of `data`."})
    example = plain.Dict(required=True, metadata={"description": "A `data` that fits it."})


class EventTypePageSchema(Schema):
    """Every type of event."""

    data = plain.List(plain.Nested(EventTypeSchema), required=True)
    next_cursor = fields.Text(1000, required=True, allow_none=True)


class WebhookDecisionSchema(Schema):
    """What was decided for one webhook, and what came of it."""

    webhook_id = fields.Id("whk", required=True)
    decision = fields.Text(20, required=True)
    explanation = fields.Text(500, required=True)
    deliveries = plain.List(plain.Nested(DeliverySchema), required=True)


class EventSchema(Schema):
    """One event across all webhooks."""

    id = fields.Id("evt", required=True)
    type = fields.Choice(EventType, required=True)
    created_at = fields.Time(required=True)
    payload = plain.Dict(required=True, metadata={"description": "What every receiver gets."})
    webhooks = plain.List(plain.Nested(WebhookDecisionSchema), required=True)


@blp.route("/event-types", methods=["GET"])
@requires(Role.READ)
@blp.response(200, EventTypePageSchema)
def list_types() -> Response:
    """List the types of events"""
    data = [event_types.represent(name) for name in EventType]
    return answer({"data": data, "next_cursor": None})


@blp.route("/events/<event_id>", methods=["GET"])
@requires(Role.READ, whole_tenant=True)
@blp.response(200, EventSchema)
def read(event_id: str) -> Response:
    """Read an event: its payload, and for every webhook the decision and the deliveries"""
    with transaction(snapshot=True) as session:
        found = event_history.find(session, caller(), ids.parse("evt", event_id))
        body: dict[str, Any] = event_history.describe(session, found)
        return answer(body)
