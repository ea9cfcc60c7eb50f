"""Disables a webhook whose receiver answered 410 Gone, or has failed for days.

After half of that time the tenant is warned once (`webhook.failing`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import func, update
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.delivery import cancelling, events
from app.core.delivery.event_types import EventType
from app.core.delivery.events import NewEvent
from app.core.delivery.lanes import lane_changes, lanes
from app.core.delivery.lanes.lane_changes import LockedLane
from app.database import cursor, database_now
from app.models import Webhook

REASONS = {
    "gone": "The receiver answered 410 Gone.",
    "failing": "Its endpoint has failed every attempt for days.",
    "refusing": "Its receiver has accepted nothing for days: it refused what was sent.",
}
WARNING = (
    "The endpoint has failed every attempt since failing_since. If that goes on until "
    "disabled_from, the webhook is disabled and what it has open is cancelled."
)

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Reason:
    """Why to disable a webhook: a key of `REASONS`, the receiver, since when nothing arrives.

    `receiver_since` is the lane's: when its URL or headers were set last.
    """

    code: str
    receiver_since: datetime | None
    since: datetime | None = None


def warn(
    session: Session,
    tenant_id: UUID,
    webhook_id: UUID,
    reason: Reason,
    disable_after: timedelta,
) -> bool:
    """Emit `webhook.failing` to the tenant's other webhooks, once per failing period.

    Returns False when it was emitted already, or the reason no longer holds.
    """
    lane = _lane_of(session, tenant_id, webhook_id, reason)
    if lane is None or reason.since is None or lane.health.warned_at is not None:
        return False
    health, refuses = lane.health, reason.code == "refusing"
    wanted = {"tenant": tenant_id, "webhook": webhook_id}
    if cursor(session).execute(_WARNED, wanted).rowcount == 0:
        return False
    data = {
        "webhook_id": ids.text("whk", webhook_id),
        "detail": WARNING,
        "failing_since": rfc3339(reason.since),
        "refusing_since": rfc3339(reason.since) if refuses else None,
        "status_code": health.refused_status if refuses else None,
        "failed_attempts": health.unsuccessful_attempts if refuses else health.consecutive_failures,
        "disabled_from": rfc3339(reason.since + disable_after),
    }
    event = NewEvent(EventType.WEBHOOK_FAILING.value, data, lane.now)
    events.emit(session, tenant_id, [event], not_to=ids.webhook_of(webhook_id))
    return True


# All lanes of the webhook, which are locked: it is warned of once.
_WARNED = """
UPDATE lanes AS l SET warned_at = clock_timestamp() FROM webhooks AS w, webhook_lanes AS k
 WHERE k.tenant_id = %(tenant)s AND k.webhook_id = webhook_of(%(webhook)s)
   AND l.tenant_id = k.tenant_id AND l.webhook_id = k.id AND l.warned_at IS NULL
   AND w.tenant_id = k.tenant_id AND w.id = k.webhook_id
   AND w.status = 'enabled' AND w.deleted_at IS NULL
"""


def _lane_of(
    session: Session, tenant_id: UUID, webhook_id: UUID, reason: Reason
) -> LockedLane | None:
    """Return the lane, locked with the webhook's others.

    None when its URL has changed or the receiver has accepted something since, on any lane.
    """
    # Lock order: the lanes before the webhook, as everywhere.
    of_webhook = lanes.of_webhook(session, tenant_id, ids.webhook_of(webhook_id))
    found = lane_changes.lock(session, [(tenant_id, lane) for lane in of_webhook])
    lane = found.get((tenant_id, webhook_id))
    if lane is None or lane.receiver_since != reason.receiver_since:
        return None
    last = max((each.health.last_success_at or _NEVER for each in found.values()), default=_NEVER)
    if reason.since is not None and last > reason.since:
        return None
    runs = (None, lane.health.failing_since, lane.health.unsuccessful_since)
    return lane if reason.since in runs else None


def disable(session: Session, tenant_id: UUID, webhook_id: UUID, reason: Reason) -> bool:
    """Disable a webhook, cancel its open deliveries, notify the tenant's other webhooks, audit it.

    `webhook_id` is the lane that gives the reason. Returns False when it no longer holds: the
    webhook is disabled or deleted already, its URL has changed, or it has succeeded since, on any
    of its lanes.
    """
    if _lane_of(session, tenant_id, webhook_id, reason) is None:
        return False
    changed = session.execute(
        update(Webhook)
        .where(
            Webhook.tenant_id == tenant_id,
            Webhook.id == ids.webhook_of(webhook_id),
            Webhook.status == "enabled",
            Webhook.deleted_at.is_(None),
        )
        .values(status="disabled", disabled_reason=reason.code, updated_at=func.clock_timestamp())
    )
    if changed.rowcount == 0:  # type: ignore[attr-defined]  # an UPDATE always has it
        return False
    cancelled = cancelling.cancel(session, tenant_id, ids.webhook_of(webhook_id))
    now = database_now(session)
    webhook = ids.text("whk", webhook_id)
    data = {
        "webhook_id": webhook,
        "reason": reason.code,
        "detail": REASONS[reason.code],
        "cancelled_deliveries": cancelled,
        "disabled_at": rfc3339(now),
    }
    events.emit(
        session,
        tenant_id,
        [NewEvent(EventType.WEBHOOK_DISABLED.value, data, now)],
        not_to=ids.webhook_of(webhook_id),
    )
    chain.append(
        session,
        tenant_id,
        SYSTEM,
        "webhook.disable",
        target=("webhook", webhook),
        details={"reason": reason.code, "cancelled_deliveries": cancelled},
    )
    return True
