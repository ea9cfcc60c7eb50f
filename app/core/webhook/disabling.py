"""Disabling a webhook because its receiver said so, or has only failed for days."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func, update
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.delivery import cancelling, events, lanes
from app.core.delivery.events import NewEvent
from app.database import database_now
from app.models import Webhook

REASONS = {
    "gone": "The receiver answered 410 Gone.",
    "failing": "Every attempt failed for days.",
}


@dataclass(frozen=True)
class Reason:
    """Why a webhook is to be disabled: a key of `REASONS`, and the URL that gave it."""

    code: str
    url: str


def disable(session: Session, tenant_id: UUID, webhook_id: UUID, reason: Reason) -> bool:
    """Disable a webhook, cancel what is open, tell the tenant's other webhooks, and audit it.

    Returns False when the reason no longer holds: it was disabled or deleted already, has another
    URL by now, or has succeeded since.
    """
    # The lane is locked before the webhook, here as everywhere.
    lane = lanes.look(session, tenant_id, webhook_id)
    if lane is None or lane.url != reason.url:
        return False
    if reason.code == "failing" and lane.failing_since is None:
        return False
    changed = session.execute(
        update(Webhook)
        .where(
            Webhook.tenant_id == tenant_id,
            Webhook.id == webhook_id,
            Webhook.status == "enabled",
            Webhook.deleted_at.is_(None),
        )
        .values(status="disabled", disabled_reason=reason.code, updated_at=func.clock_timestamp())
    )
    if changed.rowcount == 0:  # type: ignore[attr-defined]  # an UPDATE always has it
        return False
    cancelled = cancelling.cancel(session, tenant_id, webhook_id)
    now = database_now(session)
    webhook = ids.text("whk", webhook_id)
    data = {
        "webhook_id": webhook,
        "reason": reason.code,
        "detail": REASONS[reason.code],
        "cancelled_deliveries": cancelled,
        "disabled_at": rfc3339(now),
    }
    events.emit(session, tenant_id, [NewEvent("webhook.disabled", data, now)], not_to=webhook_id)
    chain.append(
        session,
        tenant_id,
        SYSTEM,
        "webhook.disable",
        target=("webhook", webhook),
        details={"reason": reason.code, "cancelled_deliveries": cancelled},
    )
    return True
