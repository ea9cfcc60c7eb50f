"""Rows of durable jobs: read, locked, written under a claim, and deleted with their history.

The service's own jobs stay: one row each, which shows the last run.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, text, update
from sqlalchemy.orm import Session

from app.database import cursor
from app.errors import NotFound
from app.lib import canonical_json
from app.models import NO_TENANT, Job

NOW = func.clock_timestamp()
# Rows deleted in one transaction, which takes some tens of milliseconds.
AT_ONCE = 2_000
# A job that is being retried is locked, or no longer finished.
_FORGET = """
DELETE FROM jobs WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM jobs
     WHERE finished_at < %s AND tenant_id <> %s
     ORDER BY finished_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def get(session: Session, tenant_id: UUID, job_id: UUID | None) -> Job:
    """Return one of the tenant's jobs. Raises `NotFound`."""
    job = session.get(Job, (tenant_id, job_id)) if job_id else None
    if job is None:
        raise NotFound("There is no such job.")
    return job


def args_of(job: Job) -> dict[str, Any]:
    """Return a job's arguments."""
    return dict(json.loads(job.args))


def progress_of(job: Job) -> dict[str, Any]:
    """Return a job's progress so far."""
    return dict(json.loads(job.progress or "{}"))


def locked(session: Session, tenant_id: UUID, job_id: UUID | None) -> Job:
    """Return one of the tenant's jobs, locked until the transaction ends. Raises `NotFound`."""
    get(session, tenant_id, job_id)
    return session.get_one(Job, (tenant_id, job_id), with_for_update=True, populate_existing=True)


def take_turns(session: Session, key: str) -> None:
    """Take the advisory lock of this key until the transaction ends."""
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:key, 0))"), {"key": key})


def write(session: Session, job: Job, **values: Any) -> bool:
    """Update a job if its `claim_no` is still this claim's; say whether it was."""
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


def dump(progress: Mapping[str, Any] | None) -> str | None:
    """Return progress as the text of its column."""
    return None if progress is None else canonical_json.dumps(progress).decode()


def forget_old(session: Session, before: datetime) -> int:
    """Delete jobs that ended before a moment, in a session that sees all tenants; return how many.

    At most `AT_ONCE`; fewer means that none are left. A retry would be useless by then: the events
    of a replay are gone, and jobs of other kinds are enqueued anew.
    """
    return cursor(session).execute(_FORGET, (before, NO_TENANT, AT_ONCE)).rowcount
