"""Durable jobs over HTTP: status and progress, retry, cancel and resume."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from flask import Response
from sqlalchemy.orm import Session

from app.api.http.answers import answer
from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, filters, page, page_schema
from app.api.http.services import caller, transaction
from app.core.callers import Caller, Role
from app.core.jobs import control as job_control
from app.core.jobs import job_rows
from app.core.jobs.control import JobSchema, Status
from app.core.replay import job_changes
from app.models import Job
from app.schemas import fields

blp = Blueprint(
    "jobs", __name__, url_prefix="/v1/jobs", description="Work that is done in the background."
)


class JobArgs(PageArgs):
    """Query parameters of the job list."""

    kind = fields.Text(100)
    status = fields.Choice(Status)
    record_id = fields.Id("rec", description="Jobs that build the evidence pack of this record.")


JobPageSchema = page_schema(JobSchema)


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(JobArgs, location="query")
@blp.response(200, JobPageSchema)
def list_jobs(args: dict[str, Any]) -> Response:
    """List jobs, newest first"""
    with transaction() as session:
        return page(
            args,
            lambda before, limit: job_control.find(
                session, caller().tenant_id, before=before, limit=limit, **filters(args)
            ),
            lambda job: job_changes.represent(session, job),
        )


@blp.route("/<job_id>", methods=["GET"])
@requires(Role.READ, whole_tenant=True)
@blp.response(200, JobSchema)
def read(job_id: UUID | None) -> Response:
    """Read a job"""
    with transaction() as session:
        found = job_rows.get(session, caller().tenant_id, job_id)
        return answer(job_changes.represent(session, found))


@blp.route("/<job_id>/retry", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.response(200, JobSchema)
def retry(job_id: UUID | None) -> Response:
    """Retry a dead job from where it stopped"""
    return _move(job_changes.retry, job_id)


@blp.route("/<job_id>/cancel", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.response(200, JobSchema)
def cancel(job_id: UUID | None) -> Response:
    """Cancel a job

    Finished work is kept; deliveries of a replay that are not sent yet stay unsent.
    """
    return _move(job_changes.cancel, job_id)


@blp.route("/<job_id>/resume", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.response(200, JobSchema)
def resume(job_id: UUID | None) -> Response:
    """Resume a cancelled job from where it stopped"""
    return _move(job_changes.resume, job_id)


def _move(verb: Callable[[Session, Caller, UUID | None], Job], job_id: UUID | None) -> Response:
    return once(
        200, lambda session: job_changes.represent(session, verb(session, caller(), job_id))
    )
