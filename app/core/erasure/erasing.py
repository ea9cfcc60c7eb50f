"""Erasing objects: those that no row names any more, and those that none ever named.

What is to be erased is a row, written in the transaction that removed the one which named it; it
goes when the store has been seen without the object. The sweep looks at each name once, a day after
it was written: no transaction is left then that could name it.
"""

from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

import structlog
from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.blobs import rows
from app.core.blobs.store import Blob, BlobStore, first_id, named
from app.core.callers import SYSTEM
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, JobFailed, Step
from app.database import Database, cursor
from app.models import Job

KIND = "erase_objects"
LATE = timedelta(hours=1)
"""An object that should be gone for so long is reported."""

_log = structlog.get_logger(__name__)

_AT_ONCE = 1_000
_MOST_TENANTS = 1_000

_TENANTS = """
SELECT DISTINCT tenant_id FROM (
    SELECT tenant_id FROM dead_blobs WHERE due_at <= clock_timestamp()
     ORDER BY due_at LIMIT %s) AS due
"""
_DUE = """
SELECT blob, kind, tenant_id, owner_id, number FROM dead_blobs
 WHERE tenant_id = %s AND due_at <= clock_timestamp() ORDER BY due_at LIMIT %s
"""
_GONE = "DELETE FROM dead_blobs WHERE tenant_id = %s AND blob = ANY (%s)"
_OLDEST = "SELECT min(due_at) FROM dead_blobs"


def enqueue_due(session: Session) -> None:
    """Enqueue a job for each tenant that has something to be erased; sees all tenants."""
    for (tenant_id,) in cursor(session).execute(_TENANTS, (_AT_ONCE * _MOST_TENANTS,)).fetchall():
        order(session, tenant_id)


def order(session: Session, tenant_id: UUID) -> None:
    """Enqueue the tenant's job, unless there is one."""
    progress = {"erased": 0, "bundles": 0}
    job_queue.enqueue(session, tenant_id, kind=KIND, args={}, dedupe_key="due", progress=progress)


def order_any(session: Session, tenant_id: UUID) -> None:
    """Enqueue the tenant's job if it has anything to be erased."""
    if cursor(session).execute(_DUE, (tenant_id, 1)).fetchone():
        order(session, tenant_id)


def late_since(session: Session) -> datetime | None:
    """Return since when the oldest object is due that is not erased yet; None without one."""
    return cursor(session, scalar_row).execute(_OLDEST).fetchone()


def step(
    store: BlobStore | None, session: Session, tenant_id: UUID, job: Job
) -> Step | Errand[None]:
    """Erase a tenant's next objects; the last step appends the audit entry."""
    due = [Blob(*row) for row in cursor(session).execute(_DUE, (tenant_id, _AT_ONCE))]
    progress = job_rows.progress_of(job)
    if not due:
        if progress["bundles"]:
            target = ("job", ids.text("job", job.id))
            chain.append(
                session, tenant_id, SYSTEM, "bundles.erase", target=target, details=progress
            )
        return Step(None, progress)
    if store is None:
        raise JobFailed("Objects are to be erased, and BLOB_URL names no store.")

    def record(at_end: Session, _: None) -> Step:
        cursor(at_end).execute(_GONE, (tenant_id, [each.blob for each in due]))
        progress["erased"] += len(due)
        progress["bundles"] += sum(each.kind == "bundles" for each in due)
        return Step("erasing", progress)

    return Errand(lambda: store.erase(due), record)


SWEEP = "sweep_objects"
GRACE = timedelta(days=1)
_SETTLED = "SELECT least(settled_before(), clock_timestamp())"


def enqueue_sweep(session: Session) -> None:
    """Enqueue the next sweep, which goes on where the last one ended."""
    last = job_queue.last_of(session, kind=SWEEP, dedupe_key="all")
    after = "" if last is None else job_rows.progress_of(last).get("after", "")
    if last is not None and last.finished_at is None:
        return
    job_queue.recur(session, kind=SWEEP, dedupe_key="all", args={"after": after})


def sweep(
    database: Database, store: BlobStore | None, session: Session, _: object, job: Job
) -> Step | Errand[tuple[str, int, bool]]:
    """Look at the next names in the store."""
    progress = job_rows.progress_of(job) or {"swept": 0, **job_rows.args_of(job)}
    settled = cursor(session, scalar_row).execute(_SETTLED).fetchone()
    if store is None or settled is None:
        return Step(None, progress)

    def record(_at_end: Session, found: tuple[str, int, bool]) -> Step:
        after, swept, more = found
        shown = {"after": after, "swept": progress["swept"] + swept}
        return Step("sweeping" if more else None, shown)

    below = first_id(settled - GRACE)
    return Errand(lambda: _swept(database, store, progress["after"], below), record)


def _swept(database: Database, store: BlobStore, after: str, below: str) -> tuple[str, int, bool]:
    """Return the last name that was looked at, how many were deleted, and whether more come."""
    names = [name for name in islice(store.names(after), _AT_ONCE) if name < below]
    found = [blob for blob in map(named, names) if blob is not None]
    with database.across_tenants() as session:
        kept = rows.named(session, found) | rows.retired(session, found)
    gone = [each for each in found if each not in kept]
    if gone:
        store.erase(gone)
        _log.info("objects_swept", count=len(gone), first=gone[0].name)
    return (names[-1] if names else after), len(gone), len(names) == _AT_ONCE
