"""What is due and was not rung: the second way to every row, which makes losing Redis harmless.

Each pick stamps `ring_at` in the statement that picks, so that a backlog is not rung anew each
second, and lanes whose last ring is longest ago go first: those that stay due because nobody has
room for them do not keep the others waiting.
"""

from datetime import timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app.database import cursor

AT_ONCE = 1000
# A worker that can numbers what it is rung for at once.
UNNUMBERED_FOR = timedelta(seconds=2)

# Rows that nobody has looked at yet have no lane that knows of them.
_WAKE = """
WITH unnumbered AS MATERIALIZED (
    SELECT * FROM unnumbered_lanes()
), woken AS (
    UPDATE lanes AS l SET due_at = greatest(clock_timestamp(), l.paused_until)
     WHERE (l.tenant_id, l.webhook_id) IN (
        SELECT w.tenant_id, w.webhook_id FROM lanes AS w JOIN unnumbered AS u
            ON w.tenant_id = u.tenant_id AND w.webhook_id = u.webhook_id
         WHERE w.due_at IS NULL OR w.due_at > greatest(clock_timestamp(), w.paused_until)
         ORDER BY w.tenant_id, w.webhook_id
           FOR NO KEY UPDATE OF w SKIP LOCKED)
)
SELECT tenant_id, webhook_id FROM unnumbered WHERE oldest < clock_timestamp() - %s
"""

_LANES = """
UPDATE lanes AS l SET ring_at = clock_timestamp()
 WHERE (l.tenant_id, l.webhook_id) IN (
    SELECT tenant_id, webhook_id FROM lanes
     WHERE due_at <= clock_timestamp()
       AND (ring_at IS NULL OR ring_at < clock_timestamp() - interval '2 s')
     ORDER BY ring_at NULLS FIRST, due_at LIMIT %s
       FOR NO KEY UPDATE SKIP LOCKED)
RETURNING l.tenant_id, l.webhook_id
"""

_JOBS = """
UPDATE jobs AS j SET ring_at = clock_timestamp()
 WHERE (j.tenant_id, j.id) IN (
    SELECT tenant_id, id FROM jobs
     WHERE finished_at IS NULL AND run_at <= clock_timestamp()
       AND (locked_until IS NULL OR locked_until < clock_timestamp())
       AND (ring_at IS NULL OR ring_at < clock_timestamp() - interval '2 s')
     ORDER BY run_at LIMIT %s
       FOR NO KEY UPDATE SKIP LOCKED)
RETURNING j.tenant_id, j.id
"""


def wake(session: Session) -> list[tuple[UUID, UUID]]:
    """Make every lane due that has rows without a number, in a session that sees every tenant.

    Returns, as (tenant id, webhook id), those whose oldest such row has waited for two seconds.
    """
    found = cursor(session).execute(_WAKE, (UNNUMBERED_FOR,)).fetchall()
    return [(row[0], row[1]) for row in found]


def due_lanes(session: Session) -> list[tuple[UUID, UUID]]:
    """Pick lanes to ring, as (tenant id, webhook id), in a session that sees every tenant."""
    found = cursor(session).execute(_LANES, (AT_ONCE,)).fetchall()
    return [(row[0], row[1]) for row in found]


def due_jobs(session: Session) -> list[tuple[UUID, UUID]]:
    """Pick jobs to ring, as (tenant id, job id), in a session that sees every tenant."""
    found = cursor(session).execute(_JOBS, (AT_ONCE,)).fetchall()
    return [(row[0], row[1]) for row in found]
