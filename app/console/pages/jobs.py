"""Durable jobs: progress, retry, cancel and resume; bulk replays, with a preview before."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.api.resources.deliveries.replays import BulkReplaySchema, wanted_of
from app.api.resources.jobs import list_jobs
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.console.pages.deliveries import known_webhooks, webhook_names
from app.core.callers import Role
from app.core.delivery.history import delivery_history, delivery_list, failure_groups
from app.core.delivery.history.delivery_list import Filters, Group
from app.core.digests.alerts import AlertSending
from app.core.digests.digest_mail import DigestSending
from app.core.exports import building as exporting
from app.core.jobs import control as job_control
from app.core.jobs import job_rows
from app.core.packs import subjects
from app.core.records import expiry
from app.core.replay import bulk_replay, job_changes, send_now
from app.core.replay.job_changes import Bulk
from app.core.replay.replay_deliveries import Pace
from app.core.rules import scanning
from app.core.verification import daily as verification
from app.core.webhooks import receiver_check, webhooks
from app.errors import NotFound
from app.schemas import fields
from app.schemas.schema import Schema

blp, replays_blp = Pages("jobs", "/jobs"), Pages("replays", "/replays")

# A tenant's kinds of jobs, in words.
_KINDS = {
    bulk_replay.KIND: "replay",
    send_now.KIND: "sending of what waits",
    subjects.RECORD: "evidence pack",
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
_MOVES = {
    "retry": _GOES_ON,
    "cancel": "It was stopped; what it has done stays done.",
    "resume": _GOES_ON,
}


lists.serve(
    blp,
    "jobs",
    list_jobs,
    files=True,
    named=lambda jobs: [job["args"] for job in jobs],
    shown={"kinds": _KINDS, "statuses": forms.choices(job_control.Status)},
)


@replays_blp.page("/<job_id>")
@blp.page("/<job_id>")
def show(job_id: UUID | None) -> Response:
    """Show one job; a replay with what became of its deliveries."""
    names, cause = {}, None
    with transaction() as session:
        found = job_rows.get(session, caller().tenant_id, job_id)
        job = job_changes.represent(session, found)
        if is_replay := job["kind"] == bulk_replay.KIND:
            names = webhook_names(known_webhooks(session))
            cause = _replayed_cause(session, job) if job["args"].get("group") else None
    return rendering.page(
        "replays/one" if is_replay else "jobs/one",
        job=job,
        kinds=_KINDS,
        names=names,
        cause=cause,
        cancellable=job["kind"] in job_control.CANCELLABLE,
        # It may change: it is open, or what it sent has not ended.
        watched=job["finished_at"] is None or bool((job["progress"] or {}).get("waiting")),
        does=("jobs show {job_id}", "GET /v1/jobs/{job_id}"),
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
        kind=kind and _KINDS.get(kind, kind),
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
    return rendering.done(".index", text, kind=args.get("kind"))


@replays_blp.form("/<job_id>/<verb>", Role.WRITE)
@blp.form("/<job_id>/<verb>", Role.WRITE)
def move(job_id: UUID | None, verb: str) -> Response:
    """Cancel, resume or retry a job once, and show its page.

    The page is that of the blueprint that got the form: jobs or replays.
    """
    if verb not in _MOVES:
        raise NotFound("There is no such change of a job.")
    forms.do(job_changes.change, verb, job_id)
    return rendering.done(".show", _MOVES[verb])


_HOW = ("rate", "canary", "stop_after_failures")
# The preview counts this many in well under 100 ms; the replay takes all of them.
_MOST_COUNTED = 3_000


class ReplayForm(BulkReplaySchema):
    """A bulk replay as the API takes it: of one webhook, or of all."""

    webhook_id = fields.Id("whk")


def _about(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the arguments of replays, with the webhook of those that replay a group."""
    asked = [job["args"] for job in jobs]
    for each in asked:
        if group := Group.parse(each.get("group") or ""):
            each["webhook_id"] = ids.text("whk", group.webhook_id)
    return asked


lists.serve(
    replays_blp,
    "replays",
    lambda session, _, *where: list_jobs(session, {"kind": bulk_replay.KIND}, *where),
    show=itemgetter(1),
    position=itemgetter(0),
    named=_about,
    does=("jobs list --kind bulk_replay", f"GET /v1/jobs?kind={bulk_replay.KIND}"),
)


def _preview(typed: Input, _: int = 200) -> Response:
    preview: dict[str, Any] | None = None
    # The one webhook whose deliveries are wanted; None for those of all.
    waits_at: str | None = None
    cause: dict[str, Any] | None = None
    with transaction(snapshot=True) as session:
        names = webhook_names(known_webhooks(session))
        with typed.refusing():
            # What is wrong with the pace leaves the selection as it was.
            if typed.errors.keys() <= set(_HOW):
                body = typed.without(*typed.errors).load(ReplayForm)
                if "group" in body:
                    cause = _cause(session, body["group"])
                one = body["group"].webhook_id if "group" in body else body.get("webhook_id")
                waits_at = None if one is None else ids.text("whk", one)
                as_of, rate = body.get("as_of"), body.get("rate")
                found = bulk_replay.preview(
                    session, caller(), **_selected(body), as_of=as_of, most=_MOST_COUNTED
                )
                preview = {**found.represent(rate), "complete": found.complete}
    return rendering.page(
        "replays/new",
        200 if preview and not typed.errors else 422,
        typed=typed,
        cause=cause,
        preview=preview,
        waits_at=waits_at,
        names=names,
        which=[
            (name, text)
            for name, text in typed.kept_fields()
            if text and name not in (*_HOW, "as_of")
        ],
        does=("deliveries replay --status failed --dry-run", "POST /v1/deliveries/replay"),
    )


@replays_blp.page("/new", Role.WRITE)
def new() -> Response:
    """Show the preview: the deliveries that would be sent again."""
    return _preview(forms.query().without("limit", "cursor"))


@replays_blp.form("/new", Role.WRITE, again=_preview)
def start(typed: Input) -> Response:
    """Start the replay that the page has shown."""
    body = typed.load(ReplayForm)
    pace, as_of = Pace(*(body.get(name) for name in _HOW)), body.get("as_of")
    begin = partial(bulk_replay.start, **_selected(body), pace=pace, as_of=as_of)
    job = forms.do(begin, show=job_control.represent)
    return rendering.done(".show", "The replay has begun.", job_id=job["id"])


@replays_blp.form("/new/count", Role.WRITE)
def count() -> Response:
    """Show the preview as of now, with the pace from the form."""
    return _preview(forms.sent().without("as_of"))


def _selected(body: dict[str, Any]) -> dict[str, Any]:
    """Return the deliveries that a form selects, as arguments of `bulk_replay`."""
    webhook_id = body.pop("webhook_id", None)
    all_webhooks = webhook_id is None
    wanted = wanted_of(body, webhook_id, all_webhooks=all_webhooks)
    return {"webhook_id": webhook_id, "wanted": wanted, "all_webhooks": all_webhooks}


def _cause(session: Session, group: Group) -> dict[str, Any] | None:
    """Return why a group's deliveries failed, and when; None for one that has no failures now."""
    wanted = Filters(group=group, status=frozenset((delivery_history.Status.FAILED,)))
    found = failure_groups.find(session, caller().tenant_id, wanted, window=_MOST_COUNTED, most=1)
    told = failure_groups.represent(found)["data"]
    return told[0] if told else None


def _replayed_cause(session: Session, job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the same of a replay's group, as one of the deliveries that it replays has it."""
    tenant_id = caller().tenant_id
    made = Filters(job_id=ids.parse("job", job["id"]))
    for replayed in delivery_list.page(session, tenant_id, made, before=None, limit=1):
        told = delivery_history.represent(replayed)
        webhook, first = ids.parse("whk", told["webhook_id"]), ids.parse("dlv", told["replay_of"])
        known = webhooks.require_history(session, caller(), webhook)
        try:
            found = delivery_history.find(session, tenant_id, known, first)
        except NotFound:
            return None  # it is older than the history kept
        last = delivery_history.represent(found)["last_attempt"]
        if last:
            return told | {"outcome": last["outcome"], "status_code": last["status"]}
    return None
