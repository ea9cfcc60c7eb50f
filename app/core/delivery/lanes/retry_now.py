"""Retry now: makes deliveries due that wait for their next attempt, on an operator's request.

Such attempts do not count in the retry schedule, like those of `recovery`. The lane's pause ends:
the first of them is its probe.
"""

from uuid import UUID

from app.core.delivery.events import PRIORITY_URGENT
from app.core.delivery.lanes import lanes
from app.database import Tx, cursor

# Rows in one transaction, which holds the lane's lock.
MOST_AT_ONCE = 20_000

# Deliveries spread out by a rate may be requested again before they are sent. More unscheduled
# attempts than attempts would be a position before the schedule's first.
_ALL = """
WITH waiting AS MATERIALIZED (
    SELECT picked.id, row_number() OVER (ORDER BY picked.next_attempt_at, picked.id) AS place
      FROM (VALUES (0), (1), (2)) AS level (priority)
     CROSS JOIN LATERAL (
        SELECT d.id, d.next_attempt_at FROM deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND d.webhook_id = (SELECT %(webhook)s::uuid)
           AND d.priority = level.priority AND d.finished_at IS NULL AND d.status = 'retrying'
           AND d.next_attempt_at > clock_timestamp()
         ORDER BY d.next_attempt_at LIMIT %(most)s) AS picked
     LIMIT %(most)s
)
UPDATE deliveries AS d
   SET unscheduled = least(d.unscheduled + 1, d.attempts),
       next_attempt_at = least(d.next_attempt_at,
                               clock_timestamp() + (waiting.place - 1) * %(apart)s * interval '1 s')
  FROM waiting
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.id = waiting.id AND d.status = 'retrying'
"""

# A delivery that is due already counts no further unscheduled attempt.
_ONE = f"""
UPDATE deliveries
   SET unscheduled = least(unscheduled + (next_attempt_at > clock_timestamp())::int, attempts),
       next_attempt_at = clock_timestamp(), priority = {PRIORITY_URGENT}
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND id = %(delivery)s
   AND status = 'retrying'
"""

_END_PAUSE = """
UPDATE lanes SET paused_until = least(paused_until, clock_timestamp())
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
"""


def bring_all(tx: Tx, tenant_id: UUID, webhook_id: UUID, rate: int | None) -> int:
    """Make the waiting rows of a locked lane due, `rate` a second; return how many.

    At most 20,000, in the order of their next attempts.
    """
    wanted = {"tenant": tenant_id, "webhook": webhook_id}
    apart = 1 / rate if rate else 0.0
    moved = cursor(tx).execute(_ALL, {**wanted, "most": MOST_AT_ONCE, "apart": apart}).rowcount
    cursor(tx).execute(_END_PAUSE, wanted)
    lanes.reschedule(tx, tenant_id, webhook_id)
    return moved


def bring_one(tx: Tx, tenant_id: UUID, webhook_id: UUID, delivery_id: UUID) -> bool:
    """Make one row of a locked lane due, before all others; say whether it was waiting."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "delivery": delivery_id}
    moved = cursor(tx).execute(_ONE, wanted).rowcount == 1
    if moved:
        lanes.due_now(tx, tenant_id, webhook_id)
    return moved
