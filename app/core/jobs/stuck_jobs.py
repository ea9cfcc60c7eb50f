"""Stuck jobs: scheduled further ahead than any retry allows, and freed."""

from datetime import timedelta
from uuid import UUID

import structlog
from sqlalchemy import case, func, or_, select, tuple_, update
from sqlalchemy.orm import Session

from app.core.jobs.job_rows import NOW
from app.core.jobs.leases import LEASE
from app.core.jobs.steps import RETRY_WAITS
from app.database import after_commit
from app.models import Job

# What waits for longer than its next try: a digest, for a day after the one before.
LONGEST_WAITS = {"digest": timedelta(hours=25)}
STUCK_AT_ONCE = 1000
# No job is claimed so often; the column has room for twice as many.
MOST_CLAIMS = 2**62
# The database's clock may be set back by some seconds.
_SLACK = timedelta(minutes=1)
# Asked in a query of its own, the clock says one moment.
_MOMENT = select(NOW).scalar_subquery()
# Put off beyond any retry: the row was written by hand, or the clock was set back.
IS_STUCK = Job.finished_at.is_(None) & or_(
    Job.run_at
    > _MOMENT
    + case(LONGEST_WAITS, value=Job.kind, else_=timedelta(seconds=RETRY_WAITS[-1]))
    + _SLACK,
    Job.locked_until > _MOMENT + LEASE + _SLACK,
    Job.ring_at > _MOMENT + _SLACK,
    # Neither can be read, or claimed.
    *(~func.isfinite(moment) for moment in (Job.run_at, Job.locked_until, Job.ring_at)),
    Job.claim_no >= MOST_CLAIMS,
)
_log = structlog.get_logger(__name__)


def free_stuck(session: Session) -> int:
    """Let open jobs go on that are put off beyond what anything here does; return how many.

    They wait for longer than any of their kind, are leased for longer than a lease is, or were
    rung at a moment that has not come. Each goes on from its cursor, now or, if somebody may be at
    work on it, when a lease from now would end; whoever has it writes nothing any more, and nobody
    counts that as a death. A thousand at most, in a session that sees all tenants.
    """
    found = (
        select(Job.tenant_id, Job.id)
        .where(IS_STUCK)
        .limit(STUCK_AT_ONCE)
        .with_for_update(skip_locked=True, key_share=True)
    )
    is_leased = Job.locked_until > NOW
    freed = session.execute(
        update(Job)
        .where(tuple_(Job.tenant_id, Job.id).in_(found))
        .values(
            run_at=case((func.isfinite(Job.run_at), func.least(Job.run_at, NOW)), else_=NOW),
            ring_at=None,
            locked_until=case((is_leased, func.least(Job.locked_until, NOW + LEASE))),
            status=case((is_leased, "queued"), else_=Job.status),
            claim_no=Job.claim_no % (MOST_CLAIMS - 1) + 1,
        )
        .returning(Job.id, Job.kind)
        .execution_options(synchronize_session=False)
    ).all()
    for job_id, kind in freed:
        log_stuck(session, job_id, kind)
    return len(freed)


def is_stuck(session: Session, job: Job) -> bool:
    """Say whether a job is put off beyond what anything here does."""
    this = (Job.tenant_id == job.tenant_id, Job.id == job.id)
    return session.scalar(select(Job.id).where(*this, IS_STUCK)) is not None


def log_stuck(session: Session, job_id: UUID, kind: str) -> None:
    """Log a stuck job once the transaction has committed."""
    after_commit(session, lambda: _log.error("job_was_stuck", job=str(job_id), kind=kind))
