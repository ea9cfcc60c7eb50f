"""Leases of durable jobs: claim, renew, release, and the handling of lost leases.

A lease that ends without an outcome is lost and counted at the next claim. After the second in a
row the job is a suspect: it waits longer each time (backoff) and never runs beside another
suspect. So an innocent job succeeds, which resets it.
"""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, exists, select, tuple_, update
from sqlalchemy.orm import Session

from app.core.jobs.job_rows import NOW, dump, take_turns, write
from app.database import after_commit, database_now
from app.models import Job

LEASE = timedelta(seconds=30)
# Seconds to wait after each lease lost in a row; after one more the job is dead.
LOST_WAITS = (0.0, 30.0, 120.0, 600.0)
# From this many lost leases in a row the job is suspected to crash its workers.
SUSPECT = 2
# Condition on a due job: a worker leased it, and wrote no outcome.
_LOST = (Job.status == "running") & Job.locked_until.is_not(None)
_log = structlog.get_logger(__name__)


def claim(session: Session, tenant_id: UUID, job_id: UUID) -> Job | None:
    """Lease a due job for one step; None when it is not due, finished, or leased.

    None also for a job whose lease was lost and that must wait: see `LOST_WAITS`. Only a session
    that sees all tenants can see the other suspects.
    """
    job = _lease(session, tenant_id, job_id, ~_LOST, Job.claims_lost < SUSPECT)
    return job or _claim_with_care(session, tenant_id, job_id)


def release(session: Session, claimed: Collection[Job]) -> None:
    """Exempt leases from counting as worker crashes if they end without an outcome.

    For a process that is shutting down, and after a database outage; in a session that sees all
    tenants. Each worker keeps its lease until it ends, and may still record an outcome.
    """
    claims = [(job.tenant_id, job.id, job.claim_no) for job in claimed]
    session.execute(
        update(Job)
        .where(tuple_(Job.tenant_id, Job.id, Job.claim_no).in_(claims), Job.status == "running")
        .values(status="queued")
        .execution_options(synchronize_session=False)
    )


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


def _claim_with_care(session: Session, tenant_id: UUID, job_id: UUID) -> Job | None:
    """Count a lost lease, and lease the job if it may be tried now."""
    job = session.scalar(
        select(Job)
        .where(*_due(tenant_id, job_id))
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if job is None or (_was_lost(job) and not _is_tried_again(session, job)):
        return None
    if job.claims_lost >= SUSPECT and not _is_apart(session, job):
        return None
    return _lease(session, tenant_id, job_id)


def _was_lost(job: Job) -> bool:
    return job.status == "running" and job.locked_until is not None


def _is_tried_again(session: Session, job: Job) -> bool:
    """Count the lost lease; say whether the job may be tried again without a wait."""
    now = database_now(session)
    job.claims_lost += 1
    job.locked_until = job.ring_at = None
    times = "once" if job.claims_lost == 1 else f"{job.claims_lost} times in a row"
    died = f"Its worker died {times}, or was cut off, before a step had ended"
    if job.claims_lost > len(LOST_WAITS):
        job.status = "dead"
        job.finished_at = now
        job.error = f"{died}. Check the memory of the workers, and their last log lines."
    else:
        wait = LOST_WAITS[job.claims_lost - 1]
        job.status = "retrying" if wait else "queued"
        job.error = f"{died}; it is tried again." if wait else None
        job.run_at = now + timedelta(seconds=wait) if wait else job.run_at
    session.flush()
    log = _log.error if job.status == "dead" else _log.warning
    facts = {"job": str(job.id), "kind": job.kind, "times": job.claims_lost, "status": job.status}
    after_commit(session, lambda: log("job_lost", **facts))
    return job.status == "queued"


def _is_apart(session: Session, job: Job) -> bool:
    """Say whether no other suspect is leased; locks out other suspects until the commit."""
    take_turns(session, "suspected jobs")
    others = exists().where(
        Job.finished_at.is_(None),
        Job.claims_lost >= SUSPECT,
        Job.locked_until > NOW,
        Job.id != job.id,
    )
    return not session.scalar(select(others))
