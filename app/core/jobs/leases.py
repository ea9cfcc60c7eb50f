"""Leases of durable jobs: claim, renew, release, and the handling of lost leases.

A lease that ends without an outcome is lost, and counted at the next claim. From the second in a
row the job waits longer each time; after five it is dead. Jitter keeps jobs that died together from
coming back together.
"""

import random
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, case, func, or_, select, update
from sqlalchemy.orm import Session

from app.core.jobs.job_rows import NOW, dump, write
from app.database import after_commit, database_now
from app.models import Job

LEASE = timedelta(seconds=30)
# Seconds to wait after each lease lost in a row; after one more the job is dead.
LOST_WAITS = (0.0, 30.0, 120.0, 600.0)
JITTER = 0.5
# Condition on a due job: a worker leased it, and wrote no outcome.
_LOST = (Job.status == "running") & Job.locked_until.is_not(None)
_log = structlog.get_logger(__name__)


def claim(session: Session, tenant_id: UUID, job_id: UUID) -> Job | None:
    """Lease a due job for one step; None when it is not due, finished, or leased.

    None also for a job whose lease was lost and that must wait: see `LOST_WAITS`.
    """
    return _lease(session, tenant_id, job_id, ~_LOST) or _take_over(session, tenant_id, job_id)


def release(session: Session, job: Job) -> None:
    """Exempt a claim from counting as a worker crash when its lease ends without an outcome.

    The worker keeps its lease until then, and may still record an outcome.
    """
    write(session, job, status="queued")


def renew(session: Session, job: Job, progress: Mapping[str, Any] | None = None) -> bool:
    """Lease a claimed job for another 30 seconds; False when the claim was taken over.

    Also stores `progress`, if given.
    """
    shown = {} if progress is None else {"progress": dump(progress)}
    return write(session, job, locked_until=NOW + LEASE, **shown)


def _due(tenant_id: UUID, job_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return (
        Job.tenant_id == tenant_id,
        Job.id == job_id,
        Job.finished_at.is_(None),
        Job.run_at <= NOW,
        Job.locked_until.is_(None) | (Job.locked_until < NOW),
    )


def _lease(
    session: Session, tenant_id: UUID, job_id: UUID, *only: ColumnElement[bool]
) -> Job | None:
    statement = (
        update(Job)
        .where(*_due(tenant_id, job_id), *only)
        .values(status="running", claim_no=Job.claim_no + 1, locked_until=NOW + LEASE)
        .returning(Job)
        .execution_options(populate_existing=True)
    )
    return session.scalar(statement)


def _take_over(session: Session, tenant_id: UUID, job_id: UUID) -> Job | None:
    """Count a lost lease, and lease the job anew if it need not wait."""
    job = session.scalar(
        select(Job)
        .where(*_due(tenant_id, job_id), _LOST)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if job is None:
        return None
    now = database_now(session)
    job.claims_lost += 1
    job.locked_until = job.ring_at = None
    times = "once" if job.claims_lost == 1 else f"{job.claims_lost} times in a row"
    died = f"Its worker died {times}, or was cut off, before a step had ended"
    if job.claims_lost > len(LOST_WAITS):
        job.status = "dead"
        job.finished_at = now
        job.error = f"{died}. Check the memory of the workers, and their last log lines."
    elif wait := LOST_WAITS[job.claims_lost - 1] * random.uniform(1 - JITTER, 1 + JITTER):  # noqa: S311
        job.status = "retrying"
        job.error = f"{died}; it is tried again."
        job.run_at = now + timedelta(seconds=wait)
    else:
        job.status = "queued"
        job.error = None
    session.flush()
    log = _log.error if job.status == "dead" else _log.warning
    facts = {"job": str(job.id), "kind": job.kind, "times": job.claims_lost, "status": job.status}
    after_commit(session, lambda: log("job_lost", **facts))
    return _lease(session, tenant_id, job_id) if job.status == "queued" else None


# The longest wait of any job is a digest's: a day after the previous one.
LONGEST_WAIT = timedelta(hours=25)
# The database's clock may be set back by some seconds.
_SLACK = timedelta(minutes=1)
IS_STUCK = Job.finished_at.is_(None) & or_(
    Job.run_at > NOW + LONGEST_WAIT + _SLACK,
    Job.locked_until > NOW + LEASE + _SLACK,
    Job.ring_at > NOW + _SLACK,
)


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
