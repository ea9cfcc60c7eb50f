"""Durable jobs: their list and progress; retry, cancel and resume."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from flask import Blueprint, url_for
from sqlalchemy.orm import Session
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import filters, page_of
from app.api.http.services import caller, transaction
from app.api.resources.jobs import JobArgs
from app.console.frame import downloads, forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.downloads import Listed
from app.core.callers import Caller, Role
from app.core.digests import alerts as digest_alerts
from app.core.digests import schedule
from app.core.exports import building as exporting
from app.core.jobs import control as job_control
from app.core.jobs import job_rows
from app.core.jobs.control import JobSchema, Status
from app.core.packs import record_packs
from app.core.records import expiry
from app.core.replay import bulk_replay, job_changes, send_now
from app.core.replay.job_changes import Bulk
from app.core.rules import scanning
from app.core.verification import daily as verification
from app.core.webhooks import receiver_check
from app.models import Job
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint("jobs", __name__, url_prefix="/jobs")

downloads.offer(
    blp,
    Listed(
        "jobs",
        "console.jobs.index",
        JobArgs,
        JobSchema,
        lambda session, args, before, limit: job_control.find(
            session, caller().tenant_id, before=before, limit=limit, **filters(args)
        ),
        job_changes.represent,
    ),
    whole_tenant=True,
)

# A tenant's kinds of jobs, in words.
KINDS = {
    bulk_replay.KIND: "replay",
    send_now.KIND: "sending of what waits",
    record_packs.KIND: "evidence pack",
    exporting.KIND: "export of a period",
    expiry.KIND: "expiry of bundles",
    schedule.KIND: "digest",
    digest_alerts.KIND: "mail of troubles",
    verification.KIND: "verification of the audit chain",
    receiver_check.KIND: "check of a receiver",
    scanning.TEST: "test of a rule",
    scanning.BACKFILL: "backfill of a rule",
}

_GOES_ON = "It goes on where it stopped."
_MOVES: dict[str, tuple[Callable[[Session, Caller, UUID | None], Job], str]] = {
    "retry": (job_changes.retry, _GOES_ON),
    "cancel": (job_changes.cancel, "It was stopped; what it has done stays done."),
    "resume": (job_changes.resume, _GOES_ON),
}


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List jobs, newest first, as the URL filters them."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    names: dict[str, str] = {}
    with typed.refusing(), transaction() as session:
        args = typed.load(JobArgs)
        found = page_of(
            args,
            lambda before, limit: job_control.find(
                session, caller().tenant_id, before=before, limit=limit, **filters(args)
            ),
            lambda job: job_changes.represent(session, job),
        )
        names = rendering.names_in(session, *(job["args"] for job in found["data"]))
    return rendering.page(
        "jobs/list",
        typed=typed,
        found=found,
        names=names,
        kinds=KINDS,
        statuses=[(status.value, status.value) for status in Status],
        does=("jobs list", "GET /v1/jobs"),
    )


@blp.get("/<job_id>")
@signed_in(Role.READ, whole_tenant=True)
def show(job_id: str) -> Response:
    """Show one job."""
    with transaction() as session:
        found = job_rows.get(session, caller().tenant_id, ids.parse("job", job_id))
        job = job_changes.represent(session, found)
    return rendering.page(
        "jobs/one",
        job=job,
        kinds=KINDS,
        cancellable=job["kind"] in job_control.CANCELLABLE,
        watched=is_watched(job),
        does=(f"jobs show {job_id}", f"GET /v1/jobs/{job_id}"),
    )


class BulkArgs(Schema):
    """What is done to all jobs, or to those of a kind."""

    verb = fields.Choice(Bulk, load_default=Bulk.RETRY)
    kind = fields.Text(100)


@blp.get("/all")
@signed_in(Role.WRITE, whole_tenant=True)
def preview_all() -> Response:
    """Show how many jobs would be retried or cancelled, with the button that does so."""
    typed = forms.query()
    args = typed.load(BulkArgs)
    with transaction() as session:
        verb, kind = Bulk(args["verb"]), args.get("kind")
        count = len(job_changes.matching(session, caller().tenant_id, verb, kind))
    return rendering.page(
        "jobs/all",
        typed=typed,
        count=count,
        verb=verb,
        kind=kind and KINDS.get(kind, kind),
        most=job_changes.MOST_AT_ONCE,
        does=("jobs list", "GET /v1/jobs"),
    )


@blp.post("/all")
@signed_in(Role.WRITE, whole_tenant=True)
def change_all() -> Response:
    """Retry or cancel all jobs that match."""
    args = forms.sent().load(BulkArgs)
    verb = Bulk(args["verb"])
    done = forms.once(
        lambda session: {"count": job_changes.change_all(session, caller(), verb, args.get("kind"))}
    )
    jobs = f"{done['count']:,} job{'' if done['count'] == 1 else 's'}"
    text = f"To be tried again: {jobs}." if verb is Bulk.RETRY else f"Stopped: {jobs}."
    return rendering.done(url_for(".index", kind=args.get("kind")), text)


@blp.post("/<job_id>/<verb>")
@signed_in(Role.WRITE, whole_tenant=True)
def move(job_id: str, verb: str) -> Response:
    """Cancel, resume or retry a job once, and show its page.

    The page is that of the blueprint that got the form: jobs or replays.
    """
    if verb not in _MOVES:
        raise NotFound
    change, text = _MOVES[verb]
    forms.once(lambda session: change(session, caller(), ids.parse("job", job_id)))
    return rendering.done(url_for(".show", job_id=job_id), text)


def is_watched(job: dict[str, Any]) -> bool:
    """Return whether a job's page may change: it is open, or what it sent has not ended."""
    return job["finished_at"] is None or bool((job["progress"] or {}).get("waiting"))
