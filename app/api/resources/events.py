"""Events over HTTP: the catalogue of their types, and one event across all webhooks."""

from typing import Any

from flask import Response
from marshmallow import fields as plain

from app import ids
from app.api.http.access.auth import caller, requires
from app.api.http.requests import fields
from app.api.http.requests.parsing import Blueprint
from app.api.http.requests.schemas import AnswerSchema
from app.api.http.responses.json_responses import answer
from app.api.http.transactions import transaction
from app.api.resources.deliveries.delivery_schemas import DeliverySchema
from app.core.callers import Role
from app.core.delivery import event_types
from app.core.delivery.event_types import EventType
from app.core.delivery.history import event_history

blp = Blueprint(
    "events",
    __name__,
    url_prefix="/v1",
    description="Events, their types, and why webhooks got them.",
)


class EventTypeSchema(AnswerSchema):
    """One type of event: what it means and what its `data` holds."""

    type = fields.Choice(EventType)
    description = fields.Text(1000)
    data_schema = plain.Dict(metadata={"description": "JSON Schema of `data`."})
    example = plain.Dict(metadata={"description": "A `data` that fits it."})


class EventTypePageSchema(AnswerSchema):
    """Every type of event."""

    data = plain.List(plain.Nested(EventTypeSchema))
    next_cursor = fields.Text(1000, allow_none=True)


class WebhookDecisionSchema(AnswerSchema):
    """What was decided for one webhook, and what came of it."""

    webhook_id = fields.Id("whk")
    decision = fields.Text(20)
    explanation = fields.Text(500)
    deliveries = plain.List(plain.Nested(DeliverySchema))


class EventSchema(AnswerSchema):
    """One event across all webhooks."""

    id = fields.Id("evt")
    type = fields.Choice(EventType)
    created_at = fields.Time()
    payload = plain.Dict(metadata={"description": "What every receiver gets."})
    webhooks = plain.List(plain.Nested(WebhookDecisionSchema))


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
