"""A test delivery: one event for one webhook, sent regardless of its `event_types`.

It goes before all other deliveries, even to a paused lane, where it is the probe. It has no
sequence number and its own line in the books.
"""

from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core import wakeups
from app.core.callers import Caller
from app.core.delivery import events
from app.core.delivery.event_types import EventType
from app.core.delivery.events import PRIORITY_URGENT, NewEvent
from app.core.delivery.history import decisions, delivery_history
from app.core.delivery.history.delivery_history import Listed
from app.core.delivery.lanes import lanes
from app.core.webhooks import webhooks
from app.database import cursor, database_now

MESSAGE = "This is a test delivery. Nothing has happened."

_STORE = f"""
WITH stored AS (
    INSERT INTO events (tenant_id, id, type, payload, decisions, created_at)
    VALUES (%(tenant)s, %(event)s, %(type)s, %(payload)s, %(decisions)s, %(at)s)
), accepted AS (
    UPDATE lanes SET tests_accepted = tests_accepted + 1
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
)
INSERT INTO deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                        next_attempt_at)
VALUES (%(tenant)s, %(id)s, %(webhook)s, %(event)s, %(type)s, 'test',
        {PRIORITY_URGENT}, clock_timestamp())
"""


def fire(session: Session, caller: Caller, webhook_id: UUID | None) -> Listed:
    """Send a test event to one webhook; return its delivery.

    Raises `NotFound` and `WebhookDisabled`.
    """
    webhook = webhooks.lock(session, caller.tenant_id, webhook_id)
    webhooks.require_enabled(webhook)
    at = database_now(session)
    event_id = ids.new()
    data = {"webhook_id": ids.text("whk", webhook.id), "message": MESSAGE, "check": None}
    # A delivery's id contains its event's time, so that both are in partitions of the same age.
    delivery_id = ids.new(ids.made_at(event_id))
    cursor(session).execute(
        _STORE,
        {
            "tenant": caller.tenant_id,
            "webhook": webhook.id,
            "event": event_id,
            "id": delivery_id,
            "type": EventType.WEBHOOK_TEST.value,
            "payload": events.payload(event_id, NewEvent(EventType.WEBHOOK_TEST.value, data, at)),
            "decisions": decisions.matched(webhook.id),
            "at": at,
        },
    )
    lanes.due_now(session, caller.tenant_id, webhook.id)
    wakeups.ring_lanes(session, [(caller.tenant_id, webhook.id)])
    return delivery_history.find(session, caller.tenant_id, webhook.id, delivery_id)
