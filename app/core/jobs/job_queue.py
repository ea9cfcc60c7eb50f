"""Enqueueing durable jobs, in the transaction of the change that needs them."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.jobs.job_rows import dump, locked, take_turns
from app.core.wakeups import ring_job
from app.database import database_now
from app.lib import canonical_json
from app.models import NO_TENANT, Job


def enqueue(
    session: Session,
    tenant_id: UUID | None,
    *,
    kind: str,
    args: Mapping[str, Any],
    dedupe_key: str | None = None,
    progress: Mapping[str, Any] | None = None,
) -> Job:
    """Add a job and ring it after the commit; a tenant of None means the service's own.

    With a `dedupe_key`, an open job of this kind and key is returned instead of a new one.
    """
    owner = tenant_id or NO_TENANT
    if dedupe_key is not None:
        found = open_job(session, owner, kind, dedupe_key)
        if found is not None:
            return found
    job = Job(
        tenant_id=owner,
        id=ids.new(),
        kind=kind,
        args=canonical_json.dumps(args).decode(),
        dedupe_key=dedupe_key,
        status="queued",
        attempts=0,
        claim_no=0,
        claims_lost=0,
        progress=dump(progress),
    )
    session.add(job)
    session.flush()
    ring_job(session, owner, job.id)
    return job


def recur(
    session: Session,
    *,
    kind: str,
    dedupe_key: str,
    args: Mapping[str, Any],
    after_failure: bool = False,
) -> Job:
    """Queue the service's own job of this kind and key: always the same row, unchanged while open.

    So a periodic job leaves one row, with its last outcome. With `after_failure` a job that waits
    for its next try is restarted, with these `args`. `claims_lost` is kept: until it makes
    progress, a job whose workers crashed is tried once per tick.
    """
    found = open_job(session, NO_TENANT, kind, dedupe_key)
    found = found or last_of(session, kind=kind, dedupe_key=dedupe_key)
    if found is None:
        return enqueue(session, None, kind=kind, args=args, dedupe_key=dedupe_key)
    job = locked(session, NO_TENANT, found.id)
    waits = after_failure and job.status == "retrying"
    if job.finished_at is None and not waits:
        return job
    job.args = canonical_json.dumps(args).decode()
    job.cursor = job.progress = None
    return queue_again(session, job)


def last_of(session: Session, *, kind: str, dedupe_key: str) -> Job | None:
    """Return the service's own job of this kind and key, open or not."""
    return session.scalar(
        select(Job)
        .where(Job.tenant_id == NO_TENANT, Job.kind == kind, Job.dedupe_key == dedupe_key)
        .order_by(Job.id.desc())
        .limit(1)
    )


def open_job(session: Session, owner: UUID, kind: str, dedupe_key: str) -> Job | None:
    """Return the open job of a key, and lock the key until the commit."""
    # Of two concurrent enqueues the second waits here, and then finds the first one's row.
    take_turns(session, f"{owner}:{kind}:{dedupe_key}")
    return session.scalar(
        select(Job).where(
            Job.tenant_id == owner,
            Job.kind == kind,
            Job.dedupe_key == dedupe_key,
            Job.finished_at.is_(None),
        )
    )


def queue_again(session: Session, job: Job) -> Job:
    """Requeue a locked, unleased job; it resumes at its cursor."""
    job.run_at = database_now(session)
    job.status = "queued"
    job.attempts = 0
    job.error = None
    job.ring_at = None
    job.locked_until = None
    job.finished_at = None
    session.flush()
    ring_job(session, job.tenant_id, job.id)
    return job
