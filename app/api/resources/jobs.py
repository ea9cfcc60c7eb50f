"""Durable jobs over HTTP: status and progress, retry, cancel and resume."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flask import Response
from sqlalchemy.orm import Session

from app.api.http.auth import READ_TENANT, WRITE_TENANT
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, filters
from app.api.http.routes import PAIRS, Routes
from app.api.http.services import caller, transaction
from app.core.jobs import control as job_control
from app.core.jobs import job_rows
from app.core.jobs.control import JobSchema, Status
from app.core.replay import job_changes
from app.schemas import fields

blp = Routes(
    "jobs", __name__, url_prefix="/v1/jobs", description="Work that is done in the background."
)


class JobArgs(PageArgs):
    """Query parameters of the job list."""

    kind = fields.Text(100)
    status = fields.Choice(Status)
    record_id = fields.Id("rec", description="Jobs that build the evidence pack of this record.")


@blp.lists("", READ_TENANT, JobSchema, JobArgs, **PAIRS)
def list_jobs(
    session: Session, args: Mapping[str, Any], before: UUID | None, limit: int
) -> list[tuple[UUID, dict[str, Any]]]:
    """List jobs, newest first"""
    tenant_id = caller().tenant_id
    found = job_control.find(session, tenant_id, before=before, limit=limit, **filters(args))
    return [(job.id, job_changes.represent(session, job)) for job in found]


@blp.serves("GET /<job_id>", READ_TENANT, JobSchema)
def read(job_id: UUID | None) -> dict[str, Any]:
    """Read a job"""
    with transaction() as session:
        found = job_rows.get(session, caller().tenant_id, job_id)
        return job_changes.represent(session, found)


@blp.serves("POST /<job_id>/retry", WRITE_TENANT, JobSchema)
def retry(job_id: UUID | None) -> Response:
    """Retry a dead job from where it stopped"""
    return once(200, lambda session: job_changes.change(session, caller(), "retry", job_id))


@blp.serves("POST /<job_id>/cancel", WRITE_TENANT, JobSchema)
def cancel(job_id: UUID | None) -> Response:
    """Cancel a job

    Finished work is kept; deliveries of a replay that are not sent yet stay unsent.
    """
    return once(200, lambda session: job_changes.change(session, caller(), "cancel", job_id))


@blp.serves("POST /<job_id>/resume", WRITE_TENANT, JobSchema)
def resume(job_id: UUID | None) -> Response:
    """Resume a cancelled job from where it stopped"""
    return once(200, lambda session: job_changes.change(session, caller(), "resume", job_id))
