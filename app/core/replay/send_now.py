"""Sends waiting deliveries now, for a receiver that is back hours before their next attempts."""

from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core import wakeups
from app.core.audit import chain
from app.core.callers import Caller
from app.core.delivery.history import delivery_history
from app.core.delivery.lanes import retry_now
from app.core.webhooks import webhooks
from app.errors import Conflict


def all_of(session: Session, caller: Caller, webhook_id: UUID | None, rate: int | None) -> int:
    """Make deliveries due that wait for a retry, at most `rate` a second; return how many.

    Raises `NotFound` and `WebhookDisabled`.
    """
    webhook = webhooks.lock(session, caller.tenant_id, webhook_id)
    webhooks.require_enabled(webhook)
    moved = retry_now.bring_all(session, caller.tenant_id, webhook.id, rate)
    wakeups.ring_lanes(session, [(caller.tenant_id, webhook.id)])
    if moved:
        target = ("webhook", ids.text("whk", webhook.id))
        details = {"count": moved, "rate": rate}
        chain.append_by(session, caller, "deliveries.retry_now", target=target, details=details)
    return moved


def one(
    session: Session, caller: Caller, webhook_id: UUID | None, delivery_id: UUID | None
) -> None:
    """Make one delivery due, even to a paused webhook, where it is the probe.

    Raises `NotFound`, `WebhookDisabled`, and `Conflict` when it does not wait for a retry.
    """
    tenant_id = caller.tenant_id
    webhook = webhooks.lock(session, tenant_id, webhook_id)
    found = delivery_history.find(session, tenant_id, webhook.id, delivery_id)
    webhooks.require_enabled(webhook)
    if not retry_now.bring_one(session, tenant_id, webhook.id, found.id):
        raise Conflict(
            f"This delivery is {found.row.status}: it does not wait for its next attempt."
        )
    wakeups.ring_lanes(session, [(tenant_id, webhook.id)])
    target = ("delivery", ids.text("dlv", found.id))
    details = {"webhook_id": ids.text("whk", webhook.id)}
    chain.append_by(session, caller, "delivery.retry_now", target=target, details=details)
