"""What one tick asks for: the same checkpoint of the authority and of every witness.

The log publishes each second. Were each job to take the newest checkpoint when it runs, no two
would ask for the same one, and a quorum would hardly ever meet.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from app.core import jobs
from app.core.anchoring import troubles
from app.core.log import generations, publication
from app.core.log.publication import Published
from app.database import cursor, database_now
from app.models import Job

EVERY = timedelta(minutes=10)
# What was published before the last tick but one, and a job's tries, should be vouched for by now.
OVERDUE = 2 * EVERY + timedelta(minutes=5)

_NOBODY = "No worker has asked for it: see that one is up."

_IS_LATE = """
SELECT FROM checkpoints
 WHERE generation = %s AND size = %s AND published_at < clock_timestamp() - %s
"""


def chosen(session: Session) -> Published | None:
    """Return what a tick that comes now asks for; None of a log that has not begun, or is empty."""
    last = publication.current(session)
    return None if last is None or last.checkpoint.size == 0 else last


def order(
    session: Session,
    last: Published,
    *,
    kind: str,
    key: str,
    part: str,
    since: Callable[[], datetime],
    **args: str,
) -> Job:
    """Enqueue that one is asked for this checkpoint, with `args` beside it; return the job.

    One that is being asked for an earlier checkpoint goes on with that, since the others were asked
    for it too; one whose last try failed is asked for this one from now on. Why it did not get
    anywhere by now is noted as the trouble of `part`, `since` when it says; so is that nothing came
    for so long although others were asked, whatever the job's row says.
    """
    before = jobs.last_of(session, kind=kind, dedupe_key=key)
    if before is not None:
        failed = before.error is not None and _has_had_its_time(session, before)
        if failed or database_now(session) - since() > OVERDUE:
            troubles.begin(session, part, since(), before.error or _NOBODY)
    place = {"generation": last.generation.number, "size": last.checkpoint.size}
    return jobs.recur(session, kind=kind, dedupe_key=key, args=place | args, after_failure=True)


def checkpoint(session: Session, job: Job) -> Published | None:
    """Return the checkpoint of a job's tick; None if that log has been succeeded since."""
    last, args = chosen(session), jobs.args_of(job)
    if last is None or "size" not in args:
        return last
    generation = generations.newest(session)
    if generation is None or generation.number != args["generation"]:
        return None
    return publication.at(session, generation, args["size"])


def is_late(session: Session, last: Published) -> bool:
    """Whether a checkpoint should have been shown to others by an earlier tick."""
    return _is_late(session, last.generation.number, last.checkpoint.size)


def _has_had_its_time(session: Session, job: Job) -> bool:
    args = jobs.args_of(job)
    if job.finished_at is not None:
        # Of a job that ended long ago nobody asked since: this one begins anew.
        return database_now(session) - job.finished_at < 2 * EVERY
    if "size" not in args:
        return True
    return _is_late(session, args["generation"], args["size"])


def _is_late(session: Session, generation: int, size: int) -> bool:
    return cursor(session).execute(_IS_LATE, (generation, size, EVERY)).fetchone() is not None
