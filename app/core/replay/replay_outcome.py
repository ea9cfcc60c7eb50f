"""Outcome of a bulk replay: its deliveries' statuses, and withdrawal of those not sent yet."""

from collections.abc import Sequence
from uuid import UUID

from psycopg.rows import dict_row, scalar_row
from sqlalchemy.orm import Session

from app.core.delivery.lanes import lanes
from app.core.replay.replay_plan import oldest_of
from app.database import cursor
from app.models import Job

# The counts of `tally`.
COUNTS = (
    *("sent", "succeeded", "failed_same", "failed_otherwise"),
    *("cancelled", "waiting", "retrying"),
)
# A delivery of an earlier release has no fingerprint: its replay counts in `failed_otherwise`.
_TALLY = """
SELECT count(*) AS sent,
       count(*) FILTER (WHERE r.status = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE r.status = 'failed' AND s.same) AS failed_same,
       count(*) FILTER (WHERE r.status = 'failed' AND s.same IS NOT TRUE) AS failed_otherwise,
       count(*) FILTER (WHERE r.status = 'cancelled') AS cancelled,
       count(*) FILTER (WHERE r.finished_at IS NULL) AS waiting,
       count(*) FILTER (WHERE r.finished_at IS NULL AND r.failure IS NOT NULL) AS retrying
  FROM deliveries AS r
  LEFT JOIN LATERAL (
    SELECT o.failure = r.failure AS same FROM deliveries AS o
     WHERE r.status = 'failed' AND o.tenant_id = r.tenant_id AND o.id = r.replay_of) AS s ON true
 WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.job_id = (SELECT %(job)s::uuid)
   AND r.id >= %(oldest)s AND NOT (r.status = 'cancelled' AND r.attempts = 0)
"""


def tally(session: Session, job: Job) -> dict[str, int]:
    """Count a job's deliveries; `sent` sums the rest but `retrying`, part of `waiting`.

    `failed_same` failed with the same fingerprint as the delivery that they replay. Deliveries
    withdrawn before their first attempt are not counted.
    """
    wanted = {"tenant": job.tenant_id, "job": job.id, "oldest": oldest_of(job)}
    found = cursor(session, dict_row).execute(_TALLY, wanted).fetchone()
    assert found is not None  # noqa: S101  # an aggregate always has a row
    return found


# Rows with an attempt in flight stay: it cannot be withdrawn.
_TAKE_BACK = """
WITH cancelled AS (
    UPDATE deliveries AS d
       SET status = 'cancelled', finished_at = clock_timestamp(), next_attempt_at = NULL
     WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.job_id = (SELECT %(job)s::uuid)
       AND d.webhook_id = (SELECT %(webhook)s::uuid) AND d.id >= %(oldest)s
       AND d.status = 'pending'
    RETURNING 1
)
UPDATE lanes SET replays_cancelled = replays_cancelled + (SELECT count(*) FROM cancelled)
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
"""


def lock_lanes(session: Session, tenant_id: UUID, webhooks: Sequence[UUID]) -> None:
    """Lock the lanes of webhooks in the order of ids, the global lock order of lanes."""
    for webhook in sorted(webhooks):
        lanes.lock(session, tenant_id, webhook)


def take_back(session: Session, job: Job, webhooks: Sequence[UUID]) -> None:
    """Cancel a job's deliveries that were never sent, on locked lanes."""
    wanted = {"tenant": job.tenant_id, "job": job.id, "oldest": oldest_of(job)}
    for webhook in webhooks:
        cursor(session).execute(_TAKE_BACK, {**wanted, "webhook": webhook})


_UNSENT = """
SELECT count(*) FROM (
    SELECT FROM deliveries
     WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = (SELECT %(webhook)s::uuid)
       AND priority = %(priority)s AND finished_at IS NULL AND attempts = 0
       AND next_attempt_at <= clock_timestamp() + interval '30 s'
     ORDER BY next_attempt_at LIMIT %(most)s) AS found
"""


def unsent(session: Session, tenant_id: UUID, webhook_id: UUID, priority: int, most: int) -> int:
    """Return how many deliveries of a priority wait for their first attempt, up to `most`."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "priority": priority, "most": most}
    return cursor(session, scalar_row).execute(_UNSENT, wanted).fetchone() or 0
