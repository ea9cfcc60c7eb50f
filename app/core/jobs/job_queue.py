"""Enqueueing durable jobs, in the transaction of the change that asks for them."""

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
    """Add a job and ring it after the commit; None as tenant means the service's own.

    With a `dedupe_key`, a job of this kind and key that is still open is returned instead of
    another. One that gave up since its workers died leaves their number to the next of its key:
    that is tried once each time it is asked for, until it gets somewhere.
    """
    owner = tenant_id or NO_TENANT
    lost = 0
    if dedupe_key is not None:
        found = open_job(session, owner, kind, dedupe_key)
        if found is not None:
            return found
        lost = _taken_from_the_dead(session, owner, kind, dedupe_key)
    job = Job(
        tenant_id=owner,
        id=ids.new(),
        kind=kind,
        args=canonical_json.dumps(args).decode(),
        dedupe_key=dedupe_key,
        status="queued",
        attempts=0,
        claim_no=0,
        claims_lost=lost,
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
    """Queue the service's own job of this kind and key: always the same row, as it is while open.

    So what a clock asks for day and night leaves one row that says how it went last. With
    `after_failure` one that waits for its next try begins anew, with these `args`. How often its
    worker died in a row stays: it gets somewhere, or is tried once each time the clock asks.
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
    """Return the service's own job of this kind and key as it is, open or not."""
    return session.scalar(
        select(Job)
        .where(Job.tenant_id == NO_TENANT, Job.kind == kind, Job.dedupe_key == dedupe_key)
        .order_by(Job.id.desc())
        .limit(1)
    )


def open_job(session: Session, owner: UUID, kind: str, dedupe_key: str) -> Job | None:
    """Return the open job of a key. Until the commit no other is opened."""
    # Two who enqueue the same at once: the second waits here and then finds the first's row.
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
    """Let a locked, unleased job go on from its cursor."""
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


def _taken_from_the_dead(session: Session, owner: UUID, kind: str, dedupe_key: str) -> int:
    """Take over how often workers died in a row with the last dead job of this key."""
    dead = session.scalar(
        select(Job)
        .where(
            Job.tenant_id == owner,
            Job.kind == kind,
            Job.dedupe_key == dedupe_key,
            Job.status == "dead",
        )
        .order_by(Job.id.desc())
        .limit(1)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if dead is None:
        return 0
    # Taken, not copied: once the next job has made progress, counting from there is over.
    lost, dead.claims_lost = dead.claims_lost, 0
    return lost
