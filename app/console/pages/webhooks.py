"""Webhooks: the list, creation, the page of one and its changes; tools for a receiver's author."""

import enum
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from flask import redirect, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http import parsing
from app.api.http.services import caller, services, transaction
from app.api.resources.deliveries.replays import RetryNowSchema
from app.api.resources.webhook_schemas import NewWebhookSchema, RotationSchema, WebhookChangeSchema
from app.api.resources.webhooks import PastedSchema, diagnosis, represent, room, with_secret
from app.console.frame import forms, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.console.pages.deliveries import charted, known_webhooks, subjects
from app.core.callers import Role
from app.core.delivery import accounting, hours
from app.core.delivery.event_types import EventType
from app.core.delivery.history import delivery_history, delivery_list, event_history
from app.core.delivery.history.delivery_list import Filters
from app.core.delivery.hours import Step
from app.core.jobs import control as job_control
from app.core.jobs import job_rows
from app.core.replay import bulk_replay, replay, send_now
from app.core.replay.replay_selection import Status, Wanted
from app.core.webhooks import receiver_check, webhook_secrets, webhooks
from app.core.webhooks.webhooks import State
from app.database import database_now
from app.errors import FieldError, Invalid, NotFound
from app.lib import canonical_json
from app.schemas import fields
from app.schemas.schema import Schema

blp = Pages("webhooks", "/webhooks")

_LATEST = 10
_ADDS = ("webhooks add URL", "POST /v1/webhooks")
_TEXTS: dict[tuple[str, object], str] = {
    ("held", True): "The webhook is held: events are accepted and wait.",
    ("held", False): "The webhook is released: what has gathered goes out.",
    ("status", "enabled"): ("The webhook is enabled. Nothing was left out meanwhile."),
    ("skipped", True): (
        "The webhook is enabled. What happened while it was disabled was not sent to it: this "
        "sends it now, or leave it."
    ),
    ("status", "disabled"): "The webhook is disabled, and what was waiting is cancelled.",
}


class Sort(enum.StrEnum):
    """What the list is sorted by: names from A, otherwise the worst first."""

    NAME = "name"
    STATE = "state"
    SUCCESS = "success"
    WAITING = "waiting"
    OVERDUE = "overdue"
    P95 = "p95"


_BY_STATE = {state: place for place, state in enumerate(State)}
_SORTS: dict[Sort, Callable[[dict[str, Any]], Any]] = {
    Sort.NAME: lambda each: (each["description"] or each["url"]).lower(),
    Sort.STATE: lambda each: (-_BY_STATE[each["health"]["state"]], -each["waiting"]),
    Sort.SUCCESS: lambda each: each["success"] if each["success"] is not None else 2,
    Sort.WAITING: lambda each: -each["waiting"],
    Sort.OVERDUE: lambda each: each["overdue"] or datetime.max.replace(tzinfo=UTC),
    Sort.P95: lambda each: -((each["day"] and each["day"]["p95_ms"]) or 0),
}


class WebhookListArgs(Schema):
    """How the list is sorted, and the state of what it shows."""

    sort = fields.Choice(Sort, load_default=Sort.STATE)
    state = fields.Choice(State)


_EVENT_TYPES = forms.choices(kind for kind in EventType if kind is not EventType.WEBHOOK_TEST)


def _page(typed: Input, status: int = 200, *, webhook_id: UUID | None) -> Response:
    """Render a webhook's page, with the input of its forms. Raises `NotFound`."""
    here = services().settings
    with transaction(snapshot=True) as session:
        tenant_id = caller().tenant_id
        found = webhooks.find(session, caller(), webhook_id)
        now = database_now(session)
        latest = delivery_list.page(
            session, tenant_id, Filters(webhook_id=found.id), before=None, limit=_LATEST
        )
        span = hours.span(now, None, None, Step.HOUR)
        secrets = webhook_secrets.open_secrets(
            here.master_keys, found.webhook.sealed_secrets, tenant_id, found.id, now
        )
        shown: dict[str, Any] = {
            "webhook": represent(found),
            "lane": event_history.summary_of(session, tenant_id, found.id, "", [])["lane"],
            "overdue": event_history.backlogs(session, tenant_id, found.id)[found.id][1],
            "books": accounting.of(session, tenant_id, found.id),
            "hours": charted(hours.traffic(session, tenant_id, span, found.id), span, webhook_id),
            "latest": (rows := [delivery_history.represent(each) for each in latest]),
            "subjects": subjects(session, {row["event_id"] for row in rows}),
            "secret_ends": [secret.until for secret in secrets],
        }
    webhook = shown["webhook"]
    return rendering.page(
        "webhooks/one",
        status,
        typed=typed,
        names={webhook["id"]: webhook["description"] or webhook["url"]},
        event_types=_EVENT_TYPES,
        **shown,
        does=("webhooks show {webhook_id}", "GET /v1/webhooks/{webhook_id}"),
    )


def _new(typed: Input, status: int = 200) -> Response:
    return rendering.page("webhooks/new", status, typed=typed, event_types=_EVENT_TYPES, does=_ADDS)


@blp.page("")
def index() -> Response:
    """List the webhooks, with their last 24 hours and what waits, as the URL sorts them."""
    typed = forms.query()
    args = typed.load_filters(WebhookListArgs)
    with transaction(snapshot=True) as session:
        found = _glance(session)
    key = _SORTS[args["sort"]]
    state = args.get("state")
    return rendering.page(
        "webhooks/list",
        typed=typed,
        found=sorted((each for each in found if state in (None, each["health"]["state"])), key=key),
        in_all=len(found),
        sort=args["sort"],
        does=("webhooks list", "GET /v1/webhooks"),
    )


def _glance(session: Session) -> list[dict[str, Any]]:
    """Return every webhook with its last 24 hours, and what waits at it."""
    span = hours.span(database_now(session), None, None, Step.HOUR)
    traffic = hours.of_each(session, caller().tenant_id, span)
    backlogs = event_history.backlogs(session, caller().tenant_id)
    shown = []
    for webhook in known_webhooks(session).values():
        webhook_id = ids.parse("whk", webhook["id"])
        assert webhook_id is not None  # noqa: S101  # an id of ours
        day, by_hour = traffic.get(webhook_id, (None, []))
        waiting, overdue = backlogs[webhook_id]
        success = day["succeeded"] / day["attempted"] if day and day["attempted"] else None
        more = {"day": day, "hours": by_hour, "success": success}
        shown.append({**webhook, **more, "waiting": waiting, "overdue": overdue})
    return shown


@blp.page("/new", Role.ADMIN)
def new() -> Response:
    """Show the form of a new webhook."""
    return _new(forms.blank())


@blp.form("/new", Role.ADMIN, again=_new)
def create(typed: Input) -> Response:
    """Create a webhook, and show its secret only once."""
    given = (services().settings, typed.load(NewWebhookSchema))
    made = forms.do(webhooks.create, *given, show=lambda made: with_secret(*made))
    return rendering.page("webhooks/secret", 201, webhook=made, is_new=True, does=_ADDS)


@blp.page("/<webhook_id>")
def show(webhook_id: UUID | None) -> Response:
    """Show one webhook; of a deleted one, redirect to its history."""
    try:
        return _page(forms.blank(), webhook_id=webhook_id)
    except NotFound:
        with transaction() as session:
            webhooks.require_history(session, caller(), webhook_id)
        return redirect(url_for("console.deliveries.index", webhook_id=webhook_id), 303)


@blp.form("/<webhook_id>", Role.ADMIN, again=_page)
def change(typed: Input, webhook_id: UUID | None) -> Response:
    """Hold, release, enable or disable a webhook, or change its fields."""
    wanted = typed.load(WebhookChangeSchema)
    forms.do(webhooks.change, services().settings, webhook_id, wanted)
    texts = [text for (name, value), text in _TEXTS.items() if wanted.get(name) == value]
    if wanted.get("status") == "enabled" and _was_skipped(webhook_id):
        asked = {"webhook_id": webhook_id, "status": "skipped"}
        return rendering.done("console.replays.new", _TEXTS["skipped", True], **asked)
    return rendering.done(".show", " ".join(texts) or "The webhook was changed.")


def _was_skipped(webhook_id: UUID | None) -> bool:
    """Say whether something happened while the webhook was disabled, and did not arrive since."""
    wanted = Wanted(statuses=frozenset({Status.SKIPPED}))
    with transaction(snapshot=True) as session:
        return bool(bulk_replay.preview(session, caller(), webhook_id, wanted, most=1).count)


@blp.form("/<webhook_id>/delete", Role.ADMIN, again=_page)
def delete(typed: Input, webhook_id: UUID | None) -> Response:
    """Delete a webhook, if its name or id was typed as confirmation."""

    def end(session: Session) -> None:
        found = webhooks.find(session, caller(), webhook_id)
        told = represent(found)
        if typed.value("name").strip() not in (told["description"], told["url"], told["id"]):
            raise Invalid(FieldError("/name", "This is not its name."))
        webhooks.delete(session, caller(), found.id)

    forms.once(end)
    return rendering.done(".index", "The webhook was deleted; its history stays.")


@blp.form("/<webhook_id>/test", Role.WRITE)
def test(webhook_id: UUID | None) -> Response:
    """Send a test event, and redirect to its delivery."""
    made = forms.do(replay.fire_test, webhook_id, show=delivery_history.represent)
    text = "A test event is on its way."
    return rendering.done("console.deliveries.show", text, delivery_id=made["id"])


@blp.form("/<webhook_id>/retry-now", Role.WRITE, again=_page)
def retry_now(typed: Input, webhook_id: UUID | None) -> Response:
    """Retry all waiting deliveries now."""
    rate = typed.load(RetryNowSchema).get("rate")
    moved = forms.do(send_now.all_of, webhook_id, rate)
    waited = "delivery that waited goes" if moved["count"] == 1 else "deliveries that waited go"
    text = f"{moved['count']:,} {waited} out now; this job tells what becomes of them."
    return rendering.done("console.jobs.show", text, job_id=moved["job_id"])


@blp.form("/<webhook_id>/rotate-secret", Role.ADMIN, again=_page)
def rotate(typed: Input, webhook_id: UUID | None) -> Response:
    """Rotate the webhook's secret, and show the new one only once."""
    overlap = timedelta(seconds=typed.load(RotationSchema)["overlap_seconds"])
    given = (services().settings, webhook_id, overlap)
    made = forms.do(webhooks.rotate_secret, *given, show=lambda made: with_secret(*made))
    does = ("webhooks rotate {webhook_id}", "POST /v1/webhooks/{webhook_id}/rotate-secret")
    return rendering.page("webhooks/secret", webhook=made, is_new=False, does=does)


@blp.page("/<webhook_id>/signature", Role.WRITE, methods=("GET", "POST"))
def signature(webhook_id: UUID | None) -> Response:
    """Diagnose why a receiver refuses a signature; nothing pasted is stored."""
    typed = forms.sent() if parsing.body() else forms.query()
    found: dict[str, Any] | None = None
    with room(), transaction(snapshot=True) as session:
        name = _name(session, webhook_id)
        with typed.refusing():
            if typed.value("headers"):
                found = _diagnosis(session, webhook_id, typed)
    return rendering.page(
        "webhooks/signature",
        422 if typed.errors else 200,
        typed=typed,
        found=found,
        webhook_id=webhook_id,
        name=name,
        does=(
            "webhooks verify {webhook_id} FILE",
            "POST /v1/webhooks/{webhook_id}/verify-signature",
        ),
    )


@blp.form("/<webhook_id>/check", Role.WRITE)
def check(webhook_id: UUID | None) -> Response:
    """Begin a check of the receiver."""
    job = forms.do(receiver_check.start, webhook_id, show=job_control.represent)
    return rendering.done(".checked", "The check has begun.", job_id=job["id"])


@blp.page("/<webhook_id>/checks/<job_id>")
def checked(webhook_id: UUID | None, job_id: UUID | None) -> Response:
    """Show the results of a receiver check."""
    with transaction() as session:
        name = _name(session, webhook_id)
        found = job_rows.get(session, caller().tenant_id, job_id)
    job = job_control.represent(found)
    is_check = job["kind"] == receiver_check.KIND
    if not is_check or ids.parse("whk", job["args"]["webhook_id"]) != webhook_id:
        raise NotFound("There is no check of this webhook with this id.")
    return rendering.page(
        "webhooks/check",
        job=job,
        webhook_id=webhook_id,
        name=name,
        watched=job["finished_at"] is None,
        does=("jobs show {job_id}", "GET /v1/jobs/{job_id}"),
    )


def _name(session: Session, webhook_id: UUID | None) -> str:
    found = webhooks.find(session, caller(), webhook_id)
    told = represent(found)
    return str(told["description"] or told["url"])


def _diagnosis(session: Session, webhook_id: UUID | None, typed: Input) -> dict[str, Any]:
    sent: dict[str, Any] = {"headers": _headers(typed.value("headers"))}
    if typed.value("body_base64"):
        sent["body_base64"] = "".join(typed.value("body_base64").split())
    else:
        # A browser sends each line break as CR LF.
        sent["body"] = typed.value("body").replace("\r\n", "\n")
    return diagnosis(session, webhook_id, parsing.load(PastedSchema(), sent))


def _headers(text: str) -> dict[str, Any]:
    """Read headers as they are pasted: a JSON object, or lines of `name: value`."""
    try:
        found = canonical_json.parse(text.encode())
    except canonical_json.NotJSON:
        found = None
    except canonical_json.NotIJSON as error:
        raise Invalid(FieldError("/headers", error.detail)) from None
    return found if isinstance(found, dict) else forms.header_lines(text)
