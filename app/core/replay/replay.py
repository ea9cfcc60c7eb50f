"""One delivery more: the replay of a delivery, or a test event.

Both go before live events, even to a paused lane, where they are the probe. A replay has the bytes
and number of its event. A test goes to one webhook regardless of its `event_types`, without a
number, counted by itself.
"""

from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core import wakeups
from app.core.audit import chain
from app.core.callers import Caller
from app.core.delivery import events
from app.core.delivery.event_types import EventType
from app.core.delivery.events import PRIORITY_URGENT, NewEvent
from app.core.delivery.history import delivery_history, event_history
from app.core.delivery.history.delivery_history import Delivery
from app.core.delivery.lanes import lanes
from app.core.replay import replay_deliveries
from app.core.replay.replay_deliveries import Source
from app.core.webhooks import webhooks
from app.database import cursor, database_now
from app.errors import Conflict


def replay(
    session: Session, caller: Caller, webhook_id: UUID | None, delivery_id: UUID | None
) -> Delivery:
    """Send a delivery's event again; return the new delivery.

    Raises `NotFound`, `WebhookDisabled`, and `Conflict` when the delivery still waits for its first
    attempt or its event is older than the history kept.
    """
    tenant_id = caller.tenant_id
    webhook = webhooks.lock(session, tenant_id, webhook_id)
    original = delivery_history.find(session, tenant_id, webhook.id, delivery_id)
    webhooks.require_enabled(webhook)
    lane = original.webhook_id
    if original.kind == "event" and original.sequence is None:
        # It was never sent. One round of numbering reaches it, unless hundreds wait before it.
        lanes.number(session, tenant_id, lane)
        original = delivery_history.find(session, tenant_id, webhook.id, original.id)
        if original.sequence is None:
            raise Conflict(
                "This delivery still waits for its first attempt; there is nothing to repeat."
            )
    source = Source(original.id, original.event_id, original.sequence, original.id)
    made = replay_deliveries.send(session, (tenant_id, lane), [source], PRIORITY_URGENT)
    if not made:
        raise Conflict("The event of this delivery is older than the history kept.")
    chain.append_by(
        session,
        caller,
        "delivery.replay",
        target=("delivery", ids.text("dlv", original.id)),
        details={
            "webhook_id": ids.text("whk", webhook.id),
            "event_id": ids.text("evt", original.event_id),
            "replay_id": ids.text("dlv", made[0]),
        },
    )
    return delivery_history.find(session, tenant_id, webhook.id, made[0])


MESSAGE = "This is a test delivery. Nothing has happened."

_STORE = f"""
WITH stored AS (
    INSERT INTO stored_events (tenant_id, id, type, payload, decisions, created_at)
    VALUES (%(tenant)s, %(event)s, %(type)s, %(payload)s, %(decisions)s, %(at)s)
), accepted AS (
    UPDATE lanes SET tests_accepted = tests_accepted + 1, tests_open = tests_open + 1
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
)
INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                             next_attempt_at)
VALUES (%(tenant)s, %(id)s, %(webhook)s, %(event)s, %(type)s, 'test',
        {PRIORITY_URGENT}, clock_timestamp())
"""


def fire_test(session: Session, caller: Caller, webhook_id: UUID | None) -> Delivery:
    """Send a test event to one webhook; raises `NotFound` and `WebhookDisabled`."""
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
            "decisions": event_history.match_of(webhook.id),
            "at": at,
        },
    )
    lanes.due_now(session, caller.tenant_id, webhook.id)
    wakeups.ring_lanes(session, [(caller.tenant_id, webhook.id)])
    return delivery_history.find(session, caller.tenant_id, webhook.id, delivery_id)
