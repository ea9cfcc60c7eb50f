"""Operations of a tenant on its durable jobs: list, cancel, retry, resume."""

import enum
import json
from typing import Any
from uuid import UUID

from marshmallow import fields as plain
from sqlalchemy import Select, func, literal, select, tuple_
from sqlalchemy.orm import Session

from app import ids
from app.core.jobs import job_queue, job_rows
from app.database import database_now
from app.errors import NotResumable
from app.models import Job
from app.schemas import fields
from app.schemas.schema import AnswerSchema

# Jobs of other kinds follow a tenant's settings, and have an audit entry only at their end.
CANCELLABLE = frozenset({"bulk_replay", "retry_now", "rule_test", "rule_backfill"})

# The kind of jobs that are of one record, whose id is their key.
OF_RECORDS = "evidence_pack"
_PLACE = tuple_(Job.kind, Job.id)


class Status(enum.StrEnum):
    """The status of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


class JobSchema(AnswerSchema):
    """A durable job."""

    id = fields.Id("job")
    kind = fields.Text(100, example="bulk_replay")
    args = plain.Dict()
    status = fields.Choice(Status)
    attempts = fields.Count(description="Failed attempts since it last made progress.")
    run_at = fields.Time(description="When it is due, or was last due.")
    progress = plain.Dict(allow_none=True, metadata={"description": "Progress, by kind of job."})
    error = fields.Text(10_000, allow_none=True)
    created_at = fields.Time()
    finished_at = fields.Time(allow_none=True)


def find(
    session: Session,
    tenant_id: UUID,
    *,
    before: UUID | None,
    limit: int,
    kind: str | None = None,
    status: str | None = None,
    record_id: UUID | None = None,
) -> list[Job]:
    """Return the tenant's jobs, newest first, older than the id `before`.

    Those of a record build its evidence pack.
    """
    if record_id is not None and kind not in (None, OF_RECORDS):
        return []
    query = _wanted(tenant_id, before, kind if record_id is None else OF_RECORDS, status)
    if record_id is not None:
        query = query.where(Job.dedupe_key == ids.text("rec", record_id))
    return list(session.scalars(query.limit(limit)))


def count_dead(session: Session, tenant_id: UUID) -> int:
    """Return how many of the tenant's jobs have given up."""
    dead = (Job.tenant_id == tenant_id, Job.status == "dead")
    return session.scalar(select(func.count()).select_from(Job).where(*dead)) or 0


def _wanted(
    tenant_id: UUID, before: UUID | None, kind: str | None, status: str | None
) -> Select[Job]:
    query = select(Job).where(Job.tenant_id == tenant_id)
    if status is not None:
        query = query.where(Job.status == status)
    if kind is None:
        query = query if before is None else query.where(Job.id < before)
        return query.order_by(Job.id.desc())
    # Written as a range, so that only the index by kind has this order. Otherwise, if most jobs are
    # of this kind, PostgreSQL would scan another index past all newer jobs of other kinds.
    last = Job.kind <= kind if before is None else tuple_(literal(kind), literal(before)) > _PLACE
    return query.where(Job.kind >= kind, last).order_by(Job.kind.desc(), Job.id.desc())


def cancel(session: Session, tenant_id: UUID, job_id: UUID | None) -> Job:
    """Cancel an open job at its current cursor.

    Raises `NotFound`, or `NotResumable` when it has ended or is of a kind that must run to its end.
    """
    job = job_rows.locked(session, tenant_id, job_id)
    if job.kind not in CANCELLABLE:
        raise NotResumable(
            f"A job of the kind {job.kind} runs to its end; only replays and rules over the past "
            "stop."
        )
    if job.finished_at is not None:
        raise NotResumable(f"The job is {job.status} already.")
    job.finished_at = database_now(session)
    job.status = "cancelled"
    job.locked_until = None
    # Fences off a worker in the middle of a step, even if the job is resumed before that step ends.
    job.claim_no += 1
    session.flush()
    return job


def retry(session: Session, tenant_id: UUID, job_id: UUID | None) -> Job:
    """Retry a dead job from its cursor. Raises `NotFound`, or `NotResumable` if not dead."""
    return _again(session, tenant_id, job_id, "dead")


def resume(session: Session, tenant_id: UUID, job_id: UUID | None) -> Job:
    """Resume a cancelled job. Raises `NotFound`, or `NotResumable` if it was not cancelled."""
    return _again(session, tenant_id, job_id, "cancelled")


def represent(job: Job) -> dict[str, Any]:
    """Return a job's JSON representation, as GET returns it."""
    progress = json.loads(job.progress) if job.progress else None
    return JobSchema.of(job, args=job_rows.args_of(job), progress=progress)


def _again(session: Session, tenant_id: UUID, job_id: UUID | None, status: str) -> Job:
    job = job_rows.locked(session, tenant_id, job_id)
    if job.status != status:
        raise NotResumable(f"The job is {job.status}; this is for a job that is {status}.")
    if job.dedupe_key is not None:
        successor = job_queue.open_job(session, tenant_id, job.kind, job.dedupe_key)
        if successor is not None:
            raise NotResumable(f"{ids.text('job', successor.id)} does the same, and is open.")
    job.claims_lost = 0
    return job_queue.queue_again(session, job)
