"""The page of an event: what it is about, and what became of it at every webhook."""

from flask import Blueprint
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.console.frame import rendering
from app.console.frame.access import signed_in
from app.console.pages.deliveries.deliveries import known_webhooks, subjects, webhook_names
from app.core.callers import Role
from app.core.delivery.history import event_history

blp = Blueprint("events", __name__, url_prefix="/events")


@blp.get("/<event_id>")
@signed_in(Role.READ, whole_tenant=True)
def show(event_id: str) -> Response:
    """Show one event."""
    with transaction(snapshot=True) as session:
        found = event_history.find(session, caller(), ids.parse("evt", event_id))
        event = event_history.describe(session, found)
        about = subjects(session, [event["id"]])
        size = len(event_history.payload_of(session, found))
        known = known_webhooks(session)
    return rendering.page(
        "events/one",
        event=event,
        size=size,
        subjects=about,
        names=webhook_names(known),
        states={name: each["health"]["state"] for name, each in known.items()},
        does=(f"search {event_id}", f"GET /v1/events/{event_id}"),
    )
