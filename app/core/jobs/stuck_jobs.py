"""Stuck jobs: due later than any step can ask for, as after the database's clock was set back."""

from datetime import timedelta
from functools import partial

import structlog
from sqlalchemy import case, func, or_, update
from sqlalchemy.orm import Session

from app.core.jobs.job_rows import NOW
from app.core.jobs.leases import LEASE
from app.database import after_commit
from app.models import Job

# The longest wait of any job is a digest's: a day after the previous one.
LONGEST_WAIT = timedelta(hours=25)
# The database's clock may be set back by some seconds.
_SLACK = timedelta(minutes=1)
IS_STUCK = Job.finished_at.is_(None) & or_(
    Job.run_at > NOW + LONGEST_WAIT + _SLACK,
    Job.locked_until > NOW + LEASE + _SLACK,
    Job.ring_at > NOW + _SLACK,
)
_log = structlog.get_logger(__name__)


def free_stuck(session: Session) -> int:
    """Make stuck jobs due, in a session that sees all tenants; return how many.

    A lease is cut to end as if taken now: its holder may be at work, and renews it.
    """
    freed = session.execute(
        update(Job)
        .where(IS_STUCK)
        .values(
            run_at=func.least(Job.run_at, NOW),
            ring_at=None,
            locked_until=case(
                (Job.locked_until.is_not(None), func.least(Job.locked_until, NOW + LEASE))
            ),
        )
        .returning(Job.id, Job.kind)
        .execution_options(synchronize_session=False)
    ).all()
    for job_id, kind in freed:
        after_commit(session, partial(_log.error, "job_was_stuck", job=str(job_id), kind=kind))
    return len(freed)
