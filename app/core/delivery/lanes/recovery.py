"""Recovery: waiting rows come forward once their receiver takes deliveries again.

It begins when a probe succeeds or the URL changes. When the lane has nothing else to send, waiting
rows become due: one at first, one more for each success (slow start, RFC 5681 section 3.1), half
after a failure. They do not use up the retry schedule.
"""

from uuid import UUID

from app.core.delivery.events import PRIORITY_BULK, PRIORITY_LIVE
from app.database import Tx, cursor

# Most unscheduled attempts of a row, for receivers that flap or always refuse it.
MOST_UNSCHEDULED = 10
# Waiting rows read by one step, and the most steps in one transaction.
ROWS_A_STEP = 1000
MOST_STEPS = 10

# The scan along next_attempt_at only moves forward, so each row is read once.
_STEP = f"""
WITH lane AS MATERIALIZED (
    SELECT recovering, recovering_since, receiver_since,
           coalesce(recovered_through, clock_timestamp()) AS through
      FROM lanes
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
), waiting AS MATERIALIZED (
    SELECT picked.id, picked.next_attempt_at,
           picked.status = 'retrying' AND picked.unscheduled < {MOST_UNSCHEDULED}
           AND (picked.attempted_at IS NULL OR picked.attempted_at < lane.recovering_since)
           AND (picked.asked_until IS NULL OR picked.asked_until <= clock_timestamp()
                OR coalesce(picked.attempted_at < lane.receiver_since, false)) AS eligible
      FROM lane
     CROSS JOIN (VALUES ({PRIORITY_LIVE}), ({PRIORITY_BULK})) AS level (priority)
     CROSS JOIN LATERAL (
        SELECT d.id, d.next_attempt_at, d.status, d.unscheduled, d.attempted_at, d.asked_until
          FROM open_deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND d.webhook_id = (SELECT %(webhook)s::uuid)
           AND d.priority = level.priority AND NOT d.fresh AND d.lease_until IS NULL
           AND d.next_attempt_at > lane.through
         ORDER BY d.next_attempt_at LIMIT %(limit)s) AS picked
     ORDER BY picked.next_attempt_at LIMIT %(limit)s
), counted AS (
    SELECT id, next_attempt_at, eligible,
           count(*) FILTER (WHERE eligible) OVER (ORDER BY next_attempt_at, id) AS place
      FROM waiting
), seen AS (
    SELECT * FROM counted
     WHERE place < (SELECT recovering FROM lane)
        OR eligible AND place = (SELECT recovering FROM lane)
), forward AS (
    UPDATE open_deliveries AS d
       SET next_attempt_at = clock_timestamp(), unscheduled = d.unscheduled + 1
      FROM seen
     WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.id = seen.id AND seen.eligible
    RETURNING 1
), total AS (
    SELECT (SELECT count(*) FROM forward) AS moved,
           (SELECT max(next_attempt_at) FROM seen) AS through,
           (SELECT count(*) FROM waiting) < %(limit)s
           AND (SELECT count(*) FROM seen) = (SELECT count(*) FROM waiting) AS over
)
UPDATE lanes AS l
   SET recovered_through = coalesce(total.through, recovered_through),
       recovering = CASE WHEN total.over THEN 0 ELSE recovering END,
       due_at = CASE WHEN total.over AND total.moved = 0 THEN due_at
                     ELSE least(due_at, clock_timestamp()) END
  FROM total
 WHERE l.tenant_id = %(tenant)s AND l.webhook_id = %(webhook)s
RETURNING total.moved, total.over
"""


_WAIT = """
UPDATE lanes SET due_at = least(due_at, paused_until)
 WHERE tenant_id = %s AND webhook_id = %s AND paused_until > clock_timestamp()
RETURNING 1
"""


def bring_forward(session: Tx, tenant_id: UUID, webhook_id: UUID) -> bool:
    """Make the next rows of a locked, recovering lane due; return whether the lane is due now.

    Call it when no other row is due. A paused lane goes on when its pause ends.
    """
    if cursor(session).execute(_WAIT, (tenant_id, webhook_id)).fetchone() is not None:
        return False
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "limit": ROWS_A_STEP}
    moved, over = 0, False
    for _ in range(MOST_STEPS):
        row = cursor(session).execute(_STEP, wanted).fetchone()
        moved, over = (0, True) if row is None else row
        if moved or over:
            break
    return moved > 0 or not over
