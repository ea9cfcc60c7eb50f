"""What became of an event on a webhook, in a sentence; the lane's state, and the next attempt."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.delivery.history.delivery_filters import Status
from app.core.delivery.history.delivery_history import Listed
from app.database import cursor

# The count of deliveries ahead in the lane stops here.
_COUNTED_AT_MOST = 1000


class LaneState(enum.StrEnum):
    """States of a lane: how its webhook is sent to, or why it is not; the first that applies."""

    DELETED = "deleted"
    DISABLED = "disabled"
    HELD = "held"
    PAUSED = "paused"
    SLOW = "slow"
    SENDING = "sending"
    IDLE = "idle"


@dataclass(frozen=True)
class _Lane:
    """The state of a lane, and until when it is paused."""

    state: str
    paused_until: datetime | None


_LANE = """
SELECT CASE WHEN w.deleted_at IS NOT NULL THEN 'deleted'
            WHEN w.status = 'disabled' THEN 'disabled'
            WHEN l.held_since IS NOT NULL THEN 'held'
            WHEN l.paused_until > clock_timestamp() THEN 'paused'
            WHEN l.slow_at IS NOT NULL THEN 'slow'
            WHEN EXISTS (SELECT FROM present_slots(l.tenant_id, l.webhook_id) AS s
                          WHERE s.lease_until > clock_timestamp()) THEN 'sending'
            ELSE 'idle' END AS state, l.paused_until
  FROM webhooks AS w JOIN lanes AS l ON l.tenant_id = w.tenant_id
 WHERE w.tenant_id = %(tenant)s AND w.id = webhook_of(%(lane)s) AND l.webhook_id = %(lane)s
"""
_AHEAD = """
SELECT count(*) FROM (
    SELECT FROM open_deliveries AS d
      JOIN open_deliveries AS mine
        ON mine.tenant_id = (SELECT %(tenant)s::uuid) AND mine.id = (SELECT %(delivery)s::uuid)
     WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.webhook_id = mine.webhook_id
       AND d.lease_until IS NULL
       AND (d.priority, d.next_attempt_at) < (mine.priority, mine.next_attempt_at)
       AND d.next_attempt_at <= clock_timestamp()
     LIMIT %(most)s) AS found
"""


_OVERDUE = """
SELECT min(next) FROM (
    SELECT (SELECT next_attempt_at FROM open_deliveries AS d
             WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = {webhook}
               AND d.priority = level.priority AND d.fresh = level.fresh
               AND (d.lease_until IS NULL OR d.lease_until <= clock_timestamp())
             ORDER BY d.next_attempt_at LIMIT 1) AS next
      FROM open_levels() AS level) AS first
 WHERE next < clock_timestamp()
"""


_BACKLOGS = f"""
SELECT w.id, sum(l.events_open + l.replays_open + l.tests_open
                 + count_unnumbered(l.tenant_id, l.webhook_id))::bigint,
       min(({_OVERDUE.format(webhook="l.webhook_id")}))
  FROM lanes AS l
  JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = webhook_of(l.webhook_id)
 WHERE l.tenant_id = %(tenant)s AND w.deleted_at IS NULL AND w.id = coalesce(%(webhook)s, w.id)
 GROUP BY w.id
"""


def backlogs(
    session: Session, tenant_id: UUID, webhook_id: UUID | None = None
) -> dict[UUID, tuple[int, datetime | None]]:
    """Return how many deliveries wait at each webhook, and since when one is overdue, if any.

    Of one webhook alone where it is named.
    """
    found = cursor(session).execute(_BACKLOGS, {"tenant": tenant_id, "webhook": webhook_id})
    return {each: (waiting, overdue) for each, waiting, overdue in found}


def of(
    session: Session, tenant_id: UUID, webhook_id: UUID, explanation: str, deliveries: list[Listed]
) -> dict[str, Any]:
    """Return `summary` and `lane` of an event on a webhook, from its newest delivery."""
    key = deliveries[-1].row.webhook_id if deliveries else webhook_id
    wanted = {"tenant": tenant_id, "lane": key}
    lane = cursor(session, class_row(_Lane)).execute(_LANE, wanted).fetchone()
    assert lane is not None  # noqa: S101  # every webhook has a lane
    until = lane.paused_until if lane.state == LaneState.PAUSED else None
    summary = explanation
    if deliveries:
        summary = _summary(session, tenant_id, lane, deliveries[-1])
    return {
        "summary": summary,
        "lane": {"state": lane.state, "until": until and rfc3339(until)},
    }


def _summary(session: Session, tenant_id: UUID, lane: _Lane, delivery: Listed) -> str:
    row = delivery.row
    ended = row.finished_at and rfc3339(row.finished_at)
    match Status(row.status):
        case Status.SUCCEEDED:
            return f"It arrived by {_attempts(row.attempts)}, recorded at {ended}."
        case Status.FAILED:
            return (
                f"It failed for good after {_attempts(row.attempts)}, at {ended}"
                f"{_how(delivery)}; {_further(delivery)}."
            )
        case Status.CANCELLED:
            return f"It was cancelled at {ended}; {_further(delivery)}."
        case Status.SENDING:
            return f"Attempt {row.attempts + 1} is under way."
        case Status.RETRYING:
            due = row.next_attempt_at and rfc3339(row.next_attempt_at)
            obstacle = _obstacle(lane)
            return (
                f"It has failed {_times(row.attempts)}{_how(delivery)}; attempt "
                f"{row.attempts + 1} is due at {due}{f', {obstacle}' if obstacle else ''}."
            )
        case Status.PENDING:
            return f"It waits for its first attempt, {_turn(session, tenant_id, row.id, lane)}."


def _further(delivery: Listed) -> str:
    if delivery.arrived_by_replay:
        return "its event has arrived by a replay"
    return "a replay sends it again"


def _turn(session: Session, tenant_id: UUID, delivery_id: UUID, lane: _Lane) -> str:
    if obstacle := _obstacle(lane):
        return obstacle
    wanted = {"tenant": tenant_id, "delivery": delivery_id, "most": _COUNTED_AT_MOST}
    ahead = cursor(session, scalar_row).execute(_AHEAD, wanted).fetchone()
    if not ahead:
        return "and is the next of this webhook to be sent"
    count = f"{ahead} or more" if ahead == _COUNTED_AT_MOST else str(ahead)
    return f"with {count} others of this webhook before it"


_OBSTACLES: Mapping[str, str] = {
    LaneState.DELETED: "but the webhook was deleted, so it is being cancelled",
    LaneState.DISABLED: "but the webhook is disabled, so it is being cancelled",
    LaneState.HELD: "but the webhook is held, so it is sent once that is released",
    LaneState.PAUSED: "but the webhook is paused until a probe at {until}",
}


def _obstacle(lane: _Lane) -> str | None:
    """Say why the lane sends nothing now; None where it does."""
    until = lane.paused_until and rfc3339(lane.paused_until)
    obstacle = _OBSTACLES.get(lane.state)
    return obstacle and obstacle.format(until=until)


def _how(delivery: Listed) -> str:
    last = delivery.last_attempt
    if last is None:
        return ""
    return f" (HTTP {last.status_code})" if last.status_code else f" ({last.outcome})"


def _attempts(count: int) -> str:
    return "one attempt" if count == 1 else f"{count} attempts"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
