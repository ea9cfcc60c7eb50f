"""Erasing objects that no row names any more: a durable job for each tenant.

What is to be erased is a row, written in the transaction that removed the one which named it. That
row goes when the store has been seen without the object; until then the job tries again. What was
erased of bundles is in the audit chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.blobs.store import Blob, BlobStore
from app.core.callers import SYSTEM
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, JobFailed, Step
from app.database import cursor
from app.models import Job

KIND = "erase_objects"
LATE = timedelta(hours=1)
"""An object that should be gone for so long is reported."""

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


@dataclass(frozen=True)
class Eraser:
    """Erases a tenant's objects for one worker process."""

    blobs: BlobStore | None

    def step(self, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[None]:
        """Erase the next objects; the last step appends the audit entry."""
        rows = cursor(session).execute(_DUE, (tenant_id, _AT_ONCE)).fetchall()
        due = [Blob(*row) for row in rows]
        if not due:
            return _end(session, tenant_id, job)
        store = self.blobs
        if store is None:
            raise JobFailed("Objects are to be erased, and BLOB_URL names no store.")
        return Errand(
            lambda: store.erase(due), lambda at_end, _: _record(at_end, tenant_id, job, due)
        )


def _record(session: Session, tenant_id: UUID, job: Job, erased: Sequence[Blob]) -> Step:
    cursor(session).execute(_GONE, (tenant_id, [each.blob for each in erased]))
    progress = job_rows.progress_of(job)
    progress["erased"] += len(erased)
    progress["bundles"] += sum(each.kind == "bundles" for each in erased)
    return Step("erasing", progress)


def _end(session: Session, tenant_id: UUID, job: Job) -> Step:
    progress = job_rows.progress_of(job)
    if progress["bundles"]:
        chain.append(
            session,
            tenant_id,
            SYSTEM,
            "bundles.erase",
            target=("job", ids.text("job", job.id)),
            details=progress,
        )
    return Step(None, progress)
