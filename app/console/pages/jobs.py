"""Durable jobs: their list and progress; retry, cancel and resume."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any
from uuid import UUID

from flask import url_for
from sqlalchemy.orm import Session
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.api.resources.jobs import JobArgs, list_jobs
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.lists import Listed
from app.core.callers import Caller, Role
from app.core.digests.alert_mail import AlertSending
from app.core.digests.digest_mail import DigestSending
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

blp = Pages("jobs", "/jobs")

# A tenant's kinds of jobs, in words.
KINDS = {
    bulk_replay.KIND: "replay",
    send_now.KIND: "sending of what waits",
    record_packs.KIND: "evidence pack",
    exporting.KIND: "export of a period",
    expiry.KIND: "expiry of bundles",
    DigestSending.kind: "digest",
    AlertSending.kind: "mail of troubles",
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


lists.serve(
    blp,
    Listed(
        "jobs",
        list_jobs,
        itemgetter(1),
        JobArgs,
        JobSchema,
        itemgetter(0),
        named=lambda jobs: [job["args"] for job in jobs],
        shown={"kinds": KINDS, "statuses": forms.choices(Status)},
        does=("jobs list", "GET /v1/jobs"),
    ),
)


@blp.page("/<job_id>")
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


@blp.page("/all", Role.WRITE)
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


@blp.form("/all", Role.WRITE)
def change_all() -> Response:
    """Retry or cancel all jobs that match."""
    args = forms.sent().load(BulkArgs)
    verb = Bulk(args["verb"])
    count = forms.do(job_changes.change_all, verb, args.get("kind"))
    jobs = f"{count:,} job{'' if count == 1 else 's'}"
    text = f"To be tried again: {jobs}." if verb is Bulk.RETRY else f"Stopped: {jobs}."
    return rendering.done(url_for(".index", kind=args.get("kind")), text)


@blp.form("/<job_id>/<verb>", Role.WRITE)
def move(job_id: str, verb: str) -> Response:
    """Cancel, resume or retry a job once, and show its page.

    The page is that of the blueprint that got the form: jobs or replays.
    """
    if verb not in _MOVES:
        raise NotFound
    change, text = _MOVES[verb]
    forms.do(change, ids.parse("job", job_id))
    return rendering.done(url_for(".show", job_id=job_id), text)


def is_watched(job: dict[str, Any]) -> bool:
    """Return whether a job's page may change: it is open, or what it sent has not ended."""
    return job["finished_at"] is None or bool((job["progress"] or {}).get("waiting"))
