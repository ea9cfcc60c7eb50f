"""Durable jobs: rows that say what is to be done, how far it has come, and how it ended.

A job is enqueued in the transaction of the change that asks for it, claimed under a lease, and
worked on in steps. Each step commits its effect and the job's new `cursor` together, so a job that
is killed goes on where it was. What takes long or leaves the service is an errand: it runs between
two transactions, with the lease renewed meanwhile. A job that fails is tried again with growing
waits, then it is `dead`: it stays, is shown, and can be retried.

So is a job whose worker dies again and again. A lease that ends without an outcome is counted, by
whoever comes next; from the second in a row on the job waits longer each time, and is tried while
no other such job is: what dies beside it by chance gets somewhere, and counts from nothing again.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, case, exists, func, or_, select, text, tuple_, update
from sqlalchemy.orm import Session

from app import ids
from app.core.wakeups import ring_job
from app.database import after_commit, database_now
from app.errors import NotFound
from app.lib import canonical_json
from app.models import NO_TENANT, Job

LEASE = timedelta(seconds=30)
LATE_AT_MOST = timedelta(seconds=1)
# Seconds before each further try of a job that failed; after the last it is dead.
RETRY_WAITS = (5.0, 30.0, 120.0, 600.0, 3600.0)
# The same after each lease that was lost in a row; after one more it is dead.
LOST_WAITS = (0.0, 30.0, 120.0, 600.0)
# From so many on it may be the job that kills its workers.
SUSPECT = 2
# What waits for longer than its next try: a digest, for a day after the one before.
LONGEST_WAITS = {"digest": timedelta(hours=25)}
STUCK_AT_ONCE = 1000
# No job is claimed so often; the column has room for twice as many.
MOST_CLAIMS = 2**62
# The database's clock may be set back by some seconds.
_SLACK = timedelta(minutes=1)

_NOW = func.clock_timestamp()
# Of one that is due again: a worker leased it, and wrote no outcome.
_LOST = (Job.status == "running") & Job.locked_until.is_not(None)
# Asked in a query of its own, the clock says one moment.
_MOMENT = select(_NOW).scalar_subquery()
# Put off beyond what anything here does: somebody wrote to the row, or set the clock back.
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

_Said = TypeVar("_Said")

# Tenant and job.
Name: TypeAlias = tuple[UUID, UUID]


@dataclass(frozen=True)
class Step:
    """What one step of a job did: where to go on (None: it is done), and what to show meanwhile.

    `then` is asked once that is committed, and may name another job that waited for what this step
    has left: whoever did this goes on with it.
    """

    cursor: str | None
    progress: Mapping[str, Any]
    wait: timedelta = timedelta(0)
    then: Callable[[], Name | None] = lambda: None


@dataclass(frozen=True)
class Failed:
    """A step that came to nothing, and says why; what it wrote stays.

    It is tried again like one that raised, unless `for_good`.
    """

    error: str
    for_good: bool = False


@dataclass(frozen=True)
class Errand(Generic[_Said]):
    """A step that may take long, or talks to others: not while a transaction is open.

    `talk` runs outside any; `record` gets what it returned, in the transaction that ends the step.
    Whoever dies in between is followed by another who does it all again: `talk` must bear that.
    """

    talk: Callable[[], _Said]
    record: Callable[[Session, _Said], Step | Failed]


class JobFailed(Exception):
    """The job cannot succeed, however often it is tried; the text is shown to its owner."""


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
        progress=_dump(progress),
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
    `after_failure` one that waits for its next try begins anew, with these `args`. So does one that
    is stuck, whoever wrote that: no row keeps the clock's own jobs from going on. How often its
    worker died in a row stays: it gets somewhere, or is tried once each time the clock asks.
    """
    found = open_job(session, NO_TENANT, kind, dedupe_key)
    found = found or last_of(session, kind=kind, dedupe_key=dedupe_key)
    if found is None:
        return enqueue(session, None, kind=kind, args=args, dedupe_key=dedupe_key)
    job = locked(session, NO_TENANT, found.id)
    waits = after_failure and job.status == "retrying"
    stuck = _is_stuck(session, job)
    if job.finished_at is None and not waits and not stuck:
        return job
    if stuck:
        # Whoever may have it writes nothing any more.
        job.claim_no = job.claim_no % (MOST_CLAIMS - 1) + 1
        _say_stuck(session, job.id, job.kind)
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


def claim(session: Session, tenant_id: UUID, job_id: UUID) -> Job | None:
    """Lease a due job for one step; None when it is not due, finished, or somebody else's.

    None also for one that was lost and is not to be tried now: see `LOST_WAITS`. Which jobs are
    suspected besides is seen in a session that sees all tenants only.
    """
    job = _lease(session, tenant_id, job_id, ~_LOST, Job.claims_lost < SUSPECT)
    return job or _claim_with_care(session, tenant_id, job_id)


def let_go(session: Session, claimed: Collection[Job]) -> None:
    """Note that leases which end without an outcome are nobody's fault: they are not counted.

    For a process that is to end, and for a database that was away; in a session that sees all
    tenants. Until its lease ends each is its worker's still, who may write what came of it.
    """
    claims = [(job.tenant_id, job.id, job.claim_no) for job in claimed]
    session.execute(
        update(Job)
        .where(tuple_(Job.tenant_id, Job.id, Job.claim_no).in_(claims), Job.status == "running")
        .values(status="queued")
        .execution_options(synchronize_session=False)
    )


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
    is_leased = Job.locked_until > _NOW
    freed = session.execute(
        update(Job)
        .where(tuple_(Job.tenant_id, Job.id).in_(found))
        .values(
            run_at=case((func.isfinite(Job.run_at), func.least(Job.run_at, _NOW)), else_=_NOW),
            ring_at=None,
            locked_until=case((is_leased, func.least(Job.locked_until, _NOW + LEASE))),
            status=case((is_leased, "queued"), else_=Job.status),
            claim_no=Job.claim_no % (MOST_CLAIMS - 1) + 1,
        )
        .returning(Job.id, Job.kind)
        .execution_options(synchronize_session=False)
    ).all()
    for job_id, kind in freed:
        _say_stuck(session, job_id, kind)
    return len(freed)


def renew(session: Session, job: Job, progress: Mapping[str, Any] | None = None) -> bool:
    """Lease a claimed job for another 30 seconds; False when it is not ours any more.

    With `progress` that is shown from now on.
    """
    shown = {} if progress is None else {"progress": _dump(progress)}
    return _write(session, job, locked_until=_NOW + LEASE, **shown)


def advance(session: Session, job: Job, step: Step) -> bool:
    """Write what a step did, in the step's own transaction.

    False when the claim was taken over or the job was cancelled meanwhile: the caller must then
    roll its effect back.
    """
    if step.cursor is None:
        values: dict[str, Any] = {"status": "succeeded", "finished_at": _NOW}
    else:
        # Counted from when this step was due: the sweep rings whole seconds, and a wait counted
        # from now would each time lose the rest of one. What was missed for longer is not made up.
        was_due = func.greatest(Job.run_at, _NOW - LATE_AT_MOST)
        values = {"status": "running", "cursor": step.cursor, "run_at": was_due + step.wait}
    return _write(
        session,
        job,
        attempts=0,
        claims_lost=0,
        locked_until=None,
        ring_at=None,
        error=None,
        progress=_dump(step.progress),
        **values,
    )


def fail(session: Session, job: Job, error: str, *, for_good: bool = False) -> bool:
    """Write that a step failed: try again later, or never if `for_good` or tried too often."""
    if for_good or job.attempts >= len(RETRY_WAITS):
        return _write(
            session,
            job,
            status="dead",
            attempts=job.attempts + 1,
            claims_lost=0,
            locked_until=None,
            error=error,
            finished_at=_NOW,
        )
    return _write(
        session,
        job,
        status="retrying",
        attempts=job.attempts + 1,
        claims_lost=0,
        locked_until=None,
        ring_at=None,
        error=error,
        run_at=_NOW + timedelta(seconds=RETRY_WAITS[job.attempts]),
    )


def get(session: Session, tenant_id: UUID, job_id: UUID | None) -> Job:
    """Return one of the tenant's jobs. Raises `NotFound`."""
    job = session.get(Job, (tenant_id, job_id)) if job_id else None
    if job is None:
        raise NotFound("There is no such job.")
    return job


def args_of(job: Job) -> dict[str, Any]:
    """Return a job's arguments."""
    return dict(json.loads(job.args))


def locked(session: Session, tenant_id: UUID, job_id: UUID | None) -> Job:
    """Return one of the tenant's jobs, locked until the transaction ends. Raises `NotFound`."""
    get(session, tenant_id, job_id)
    return session.get_one(Job, (tenant_id, job_id), with_for_update=True, populate_existing=True)


def take_turns(session: Session, key: str) -> None:
    """Wait until every transaction that took this key before has ended."""
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))"), {"key": key})


def open_job(session: Session, owner: UUID, kind: str, dedupe_key: str) -> Job | None:
    """Return the open job of a key. Until the commit nobody else opens one."""
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
    """Let a locked job that nobody works on go on from its cursor."""
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
    # Taken, not copied: once the next one got somewhere nobody counts from there.
    lost, dead.claims_lost = dead.claims_lost, 0
    return lost


def _due(tenant_id: UUID, job_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return (
        Job.tenant_id == tenant_id,
        Job.id == job_id,
        Job.finished_at.is_(None),
        Job.run_at <= _NOW,
        Job.locked_until.is_(None) | (Job.locked_until < _NOW),
    )


def _lease(
    session: Session, tenant_id: UUID, job_id: UUID, *only: ColumnElement[bool]
) -> Job | None:
    statement = (
        update(Job)
        .where(*_due(tenant_id, job_id), *only)
        .values(status="running", claim_no=Job.claim_no + 1, locked_until=_NOW + LEASE)
        .returning(Job)
        .execution_options(populate_existing=True)
    )
    return session.scalar(statement)


def _claim_with_care(session: Session, tenant_id: UUID, job_id: UUID) -> Job | None:
    """Count a lease that was lost, and lease the job if it is to be tried now."""
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
    """Count the lease that was lost; say whether the job is tried again without a wait."""
    now = database_now(session)
    job.claims_lost += 1
    job.locked_until = job.ring_at = None
    times = "once" if job.claims_lost == 1 else f"{job.claims_lost} times in a row"
    died = f"Its worker died {times}, or was cut off, before a step had ended"
    if job.claims_lost > len(LOST_WAITS):
        job.status = "dead"
        job.finished_at = now
        job.error = f"{died}. See how much memory workers have, and what they logged last."
    else:
        wait = LOST_WAITS[job.claims_lost - 1]
        job.status = "retrying" if wait else "queued"
        job.error = f"{died}; it is tried again." if wait else None
        job.run_at = now + timedelta(seconds=wait) if wait else job.run_at
    session.flush()
    say = _log.error if job.status == "dead" else _log.warning
    facts = {"job": str(job.id), "kind": job.kind, "times": job.claims_lost, "status": job.status}
    after_commit(session, lambda: say("job_lost", **facts))
    return job.status == "queued"


def _is_apart(session: Session, job: Job) -> bool:
    """Say whether no other suspect is leased; until the commit none can be."""
    take_turns(session, "suspected jobs")
    others = exists().where(
        Job.finished_at.is_(None),
        Job.claims_lost >= SUSPECT,
        # What is leased for longer than a lease is keeps nobody waiting: no worker wrote that.
        Job.locked_until.between(_NOW, _NOW + LEASE),
        Job.id != job.id,
    )
    return not session.scalar(select(others))


def _is_stuck(session: Session, job: Job) -> bool:
    this = (Job.tenant_id == job.tenant_id, Job.id == job.id)
    return session.scalar(select(Job.id).where(*this, IS_STUCK)) is not None


def _say_stuck(session: Session, job_id: UUID, kind: str) -> None:
    after_commit(session, lambda: _log.error("job_was_stuck", job=str(job_id), kind=kind))


def _write(session: Session, job: Job, **values: Any) -> bool:
    """Change a job that is still ours by `claim_no`; say whether it was."""
    changed = session.execute(
        update(Job)
        .where(
            Job.tenant_id == job.tenant_id,
            Job.id == job.id,
            Job.claim_no == job.claim_no,
            Job.finished_at.is_(None),
        )
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    return changed.rowcount == 1  # type: ignore[attr-defined,no-any-return]  # an UPDATE has it


def _dump(progress: Mapping[str, Any] | None) -> str | None:
    return None if progress is None else canonical_json.dumps(progress).decode()
