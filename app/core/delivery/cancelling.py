"""Cancels a webhook's open deliveries, in batches, when it is disabled or deleted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.delivery import events, hours
from app.core.delivery.event_types import WARNING, EventType
from app.core.delivery.events import NewEvent
from app.core.delivery.lanes import lanes
from app.core.delivery.lanes.lanes import Lane
from app.database import Tx, cursor, database_now
from app.errors import Conflict

CANCEL_AT_ONCE = 5_000
# Most rows that enabling a webhook cancels itself; workers cancel more. Holding the lane's lock for
# long delays every outcome, of all tenants, in a flusher's batch that includes this lane.
LEFT_AT_MOST = 20_000

_KINDS = ("event", "replay", "test")
_BY_KIND = ", ".join(f"count(*) FILTER (WHERE kind = '{kind}') AS {kind}s" for kind in _KINDS)
_KEPT = """
tenant_id, id, webhook_id, event_id, created_at, attempted_at, sequence, claim_no, priority,
attempts, status_code, kind, event_type, replay_of, job_id, failure, outcome
"""
_CANCEL = f"""
WITH doomed AS (
    DELETE FROM open_deliveries WHERE tenant_id = (SELECT %(tenant)s::uuid) AND {{which}}
    RETURNING *
), cancelled AS (
    INSERT INTO ended_deliveries (status, {_KEPT}) SELECT 'cancelled', {_KEPT} FROM doomed
    RETURNING id, kind
)
UPDATE lanes SET {", ".join(f"{kind}s_cancelled = {kind}s_cancelled + {kind}s" for kind in _KINDS)},
                 {", ".join(f"{kind}s_open = {kind}s_open - {kind}s" for kind in _KINDS)}
  FROM (SELECT {_BY_KIND}, array_agg(id) AS ids FROM cancelled) AS totals
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
RETURNING totals.ids
"""
_SOME = """
id = ANY (ARRAY(
    SELECT id FROM open_deliveries
     WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = (SELECT %(webhook)s::uuid)
       AND (sequence IS NOT NULL OR kind <> 'event')
     LIMIT %(limit)s))
"""
# Rows with an attempt in flight stay: it cannot be withdrawn.
_UNTRIED = """
job_id = (SELECT %(job)s::uuid) AND webhook_id = (SELECT %(webhook)s::uuid) AND status = 'pending'
"""


def cancel_some(session: Tx, tenant_id: UUID, webhook_id: UUID) -> bool:
    """Cancel up to 5,000 open rows of a locked lane that sends no more; say whether some are left.

    More would hold the lane's lock for seconds, and the flusher waits for it. Rows are numbered
    first, so a cancelled event keeps its place in the sequence.
    """
    for _ in range(CANCEL_AT_ONCE // lanes.NUMBER_AT_ONCE):
        if not lanes.number_locked(session, tenant_id, webhook_id):
            break
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "limit": CANCEL_AT_ONCE}
    query = _CANCEL.format(which=_SOME).encode()
    cancelled = cursor(session, scalar_row).execute(query, wanted).fetchone() or []
    if cancelled:
        count_arrived(session, tenant_id, cancelled)
    if len(cancelled) == CANCEL_AT_ONCE:
        lanes.due_now(session, tenant_id, webhook_id)
        return True
    lanes.reschedule(session, tenant_id, webhook_id)
    return False


def cancel_all(session: Tx, tenant_id: UUID, webhook_id: UUID) -> None:
    """Cancel the rows left from an earlier disabling, before the webhook is enabled.

    Raises `Conflict` while there are too many for one transaction that holds the lane's lock.
    """
    left = _count_open(session, tenant_id, webhook_id)
    if left > LEFT_AT_MOST:
        raise Conflict(
            f"Workers still cancel what this webhook had open when it was disabled ({left} are "
            f"left). Enable it when they are done with all but {LEFT_AT_MOST}, in a minute or so."
        )
    for lane in lanes.of_webhook(session, tenant_id, webhook_id):
        while cancel_some(session, tenant_id, lane):
            pass


def cancel(session: Tx, tenant_id: UUID, webhook_id: UUID) -> int:
    """Begin to cancel a webhook's open deliveries, on locked lanes; return how many there are."""
    found = _count_open(session, tenant_id, webhook_id)
    for lane in lanes.of_webhook(session, tenant_id, webhook_id):
        cancel_some(session, tenant_id, lane)
    return found


def withdraw(session: Session, tenant_id: UUID, webhook_id: UUID, job_id: UUID) -> None:
    """Cancel what a job made for a locked lane and no worker has tried to send."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "job": job_id}
    cursor(session).execute(_CANCEL.format(which=_UNTRIED).encode(), wanted)


_ARRIVED_NOW = """
    SELECT tenant_id, webhook_id, date_trunc('hour', statement_timestamp(), 'UTC') AS at,
           count(*) AS succeeded
      FROM arrived GROUP BY tenant_id, webhook_id"""
_ARRIVED = f"""
WITH arrived AS (
    UPDATE ended_deliveries AS d SET status = 'succeeded', finished_at = statement_timestamp()
      FROM unnest(%(tenants)s::uuid[], %(deliveries)s::uuid[]) AS sent (tenant_id, id)
     WHERE d.tenant_id = sent.tenant_id AND d.id = sent.id AND d.status = 'cancelled'
       AND d.id = ANY (%(deliveries)s::uuid[])
    RETURNING d.tenant_id, d.webhook_id, d.kind
), totals AS (
    SELECT tenant_id, webhook_id, {_BY_KIND} FROM arrived GROUP BY tenant_id, webhook_id
), {hours.added(_ARRIVED_NOW, ["succeeded"])}
UPDATE lanes AS l
   SET {", ".join(f"{kind}s_cancelled = l.{kind}s_cancelled - {kind}s" for kind in _KINDS)}
  FROM totals
 WHERE l.tenant_id = totals.tenant_id AND l.webhook_id = totals.webhook_id
"""


def undo(session: Session, arrived: Sequence[tuple[UUID, UUID]]) -> None:
    """Make cancelled deliveries, as (tenant id, id), succeeded: they arrived all the same.

    Takes them out of their locked lanes' cancelled ones; the caller adds them to the succeeded.
    """
    wanted = {"tenants": [each[0] for each in arrived], "deliveries": [each[1] for each in arrived]}
    cursor(session).execute(_ARRIVED, wanted, prepare=False)
    for tenant in {tenant_id for tenant_id, _ in arrived}:
        mine = [delivery_id for tenant_id, delivery_id in arrived if tenant_id == tenant]
        count_arrived(session, tenant, mine, before="cancelled")


def count_arrived(
    tx: Tx, tenant_id: UUID, ended: Sequence[UUID], *, before: str | None = None
) -> None:
    """Count the events of deliveries that just ended, on locked lanes, which a replay delivered.

    `before` is what the deliveries were: None for open, or `cancelled`.
    """
    values = (tenant_id, list(ended), before)
    cursor(tx).execute("SELECT count_arrived(%s, %s::uuid[], %s)", values)


_OPEN = """
SELECT sum(events_open + replays_open + tests_open
           + count_unnumbered(tenant_id, webhook_id))::bigint
  FROM present_lanes WHERE tenant_id = %(tenant)s AND of_webhook = %(webhook)s
"""


def _count_open(session: Tx, tenant_id: UUID, webhook_id: UUID) -> int:
    """Return how many deliveries of any kind a webhook has open, without scanning them."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id}
    return cursor(session, scalar_row).execute(_OPEN, wanted).fetchone() or 0


REASONS = {
    "gone": "The receiver answered 410 Gone.",
    "failing": "Its endpoint has failed every attempt for days.",
    "refusing": "Its receiver has accepted nothing for days: it refused what was sent.",
}
_NEVER = datetime.min.replace(tzinfo=UTC)
_IS_ENABLED = "w.status = 'enabled' AND w.deleted_at IS NULL"


@dataclass(frozen=True)
class Reason:
    """Why to disable a webhook: a key of `REASONS`, the receiver, since when nothing arrives.

    `receiver_since` is the lane's: when its URL or headers were set last. `warns`: its owner is
    warned first.
    """

    code: str
    receiver_since: datetime | None
    since: datetime | None = None
    warns: bool = False


def follow(
    session: Session, tenant_id: UUID, webhook_id: UUID, reason: Reason, disable_after: timedelta
) -> bool:
    """Disable a webhook, or warn of that; return whether it did.

    `webhook_id` is the lane that gives the reason. It does nothing if that no longer holds: if the
    URL has changed, or the receiver has accepted something since, on any lane.
    """
    first = ids.webhook_of(webhook_id)
    # Lock order: the lanes before the webhook, as everywhere.
    keys = [(tenant_id, lane) for lane in lanes.of_webhook(session, tenant_id, first)]
    found = lanes.load_each(session, keys)
    lane = found.get((tenant_id, webhook_id))
    if lane is None or lane.receiver_since != reason.receiver_since:
        return False
    last = max((each.health.last_success_at or _NEVER for each in found.values()), default=_NEVER)
    runs = (None, lane.health.failing_since, lane.health.unsuccessful_since)
    if reason.since not in runs or (reason.since is not None and last > reason.since):
        return False
    if reason.warns:
        return _warn(session, lane, reason, disable_after)
    return _disable(session, tenant_id, first, reason.code)


# All lanes of the webhook, which are locked: it is warned of once.
_WARNED = f"""
UPDATE lanes AS l SET warned_at = clock_timestamp() FROM webhooks AS w, webhook_lanes AS k
 WHERE k.tenant_id = %(tenant)s AND k.webhook_id = webhook_of(%(webhook)s)
   AND l.tenant_id = k.tenant_id AND l.webhook_id = k.id AND l.warned_at IS NULL
   AND w.tenant_id = k.tenant_id AND w.id = k.webhook_id AND {_IS_ENABLED}
"""


def _warn(session: Session, lane: Lane, reason: Reason, disable_after: timedelta) -> bool:
    """Emit `webhook.failing` to the tenant's other webhooks, once per failing period."""
    health, refuses = lane.health, reason.code == "refusing"
    wanted = {"tenant": lane.tenant_id, "webhook": lane.webhook_id}
    if reason.since is None or health.warned_at is not None:
        return False
    if cursor(session).execute(_WARNED, wanted).rowcount == 0:
        return False
    data = {
        "detail": WARNING,
        "failing_since": rfc3339(reason.since),
        "refusing_since": rfc3339(reason.since) if refuses else None,
        "status_code": health.refused_status if refuses else None,
        "failed_attempts": health.unsuccessful_attempts if refuses else health.consecutive_failures,
        "disabled_from": rfc3339(reason.since + disable_after),
    }
    _emit(session, lane.tenant_id, lane.webhook_id, EventType.WEBHOOK_FAILING, data, lane.now)
    return True


_DISABLE = f"""
UPDATE webhooks AS w
   SET status = 'disabled', disabled_reason = %(code)s, updated_at = clock_timestamp()
 WHERE w.tenant_id = %(tenant)s AND w.id = %(webhook)s AND {_IS_ENABLED}
"""


def _disable(session: Session, tenant_id: UUID, webhook_id: UUID, code: str) -> bool:
    """Disable, cancel what is open, notify the tenant's other webhooks, and audit it."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "code": code}
    if cursor(session).execute(_DISABLE, wanted).rowcount == 0:
        return False
    cancelled, now = cancel(session, tenant_id, webhook_id), database_now(session)
    details = {"reason": code, "cancelled_deliveries": cancelled}
    data = {**details, "detail": REASONS[code], "disabled_at": rfc3339(now)}
    _emit(session, tenant_id, webhook_id, EventType.WEBHOOK_DISABLED, data, now)
    target = ("webhook", ids.text("whk", webhook_id))
    chain.append(session, tenant_id, SYSTEM, "webhook.disable", target=target, details=details)
    return True


def _emit(
    session: Session,
    tenant_id: UUID,
    webhook_id: UUID,
    kind: EventType,
    data: dict[str, Any],
    at: datetime,
) -> None:
    """Emit what a webhook's event says of it to the tenant's others."""
    data = {"webhook_id": ids.text("whk", webhook_id), **data}
    not_to = ids.webhook_of(webhook_id)
    events.emit(session, tenant_id, [NewEvent(kind.value, data, at)], not_to=not_to)
