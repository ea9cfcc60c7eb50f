"""Webhooks: the list, creation, and the page of a webhook with its state and its changes."""

import enum
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flask import Blueprint, redirect, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, services, transaction
from app.api.resources.deliveries.replays import RetryNowSchema
from app.api.resources.webhook_schemas import NewWebhookSchema, WebhookChangeSchema
from app.api.resources.webhooks import represent, with_secret
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.console.pages.deliveries.deliveries import charted, known_webhooks, subjects
from app.core.callers import Role
from app.core.delivery import accounting, hours
from app.core.delivery.event_types import EventType
from app.core.delivery.history import delivery_history, delivery_list, event_history
from app.core.delivery.history.delivery_list import Filters
from app.core.delivery.hours import Step
from app.core.replay import bulk_replay, replay, send_now
from app.core.replay.replay_selection import Status, Wanted
from app.core.webhooks import webhook_secrets, webhooks
from app.core.webhooks.webhooks import State
from app.database import database_now
from app.errors import FieldError, Invalid, NotFound
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint("webhooks", __name__, url_prefix="/webhooks")

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

    sort = fields.Choice(Sort)
    state = fields.Choice(State)


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List the webhooks, with their last 24 hours and what waits, as the URL sorts them."""
    typed = forms.query()
    args: dict[str, Any] = {}
    with typed.refusing():
        args = typed.load(WebhookListArgs)
    with transaction(snapshot=True) as session:
        found = _glance(session)
    key = _SORTS[args.get("sort", Sort.STATE)]
    state = args.get("state")
    return rendering.page(
        "webhooks/list",
        typed=typed,
        found=sorted((each for each in found if state in (None, each["health"]["state"])), key=key),
        in_all=len(found),
        sort=args.get("sort", Sort.STATE),
        does=("webhooks list", "GET /v1/webhooks"),
    )


@blp.get("/new")
@signed_in(Role.ADMIN, whole_tenant=True)
def new() -> Response:
    """Show the form of a new webhook."""
    return _new(forms.blank())


@blp.post("/new")
@signed_in(Role.ADMIN, whole_tenant=True)
def create() -> Response:
    """Create a webhook, and show its secret only once."""
    typed = forms.sent()
    try:
        wanted = typed.load(NewWebhookSchema)
        settings = services().settings
        made = forms.once(
            lambda session: with_secret(*webhooks.create(session, caller(), settings, wanted))
        )
    except Invalid as wrong:
        return _new(typed.refused(wrong), 422)
    return rendering.page("webhooks/secret", 201, webhook=made, is_new=True, does=_ADDS)


@blp.get("/<webhook_id>")
@signed_in(Role.READ, whole_tenant=True)
def show(webhook_id: str) -> Response:
    """Show one webhook; of a deleted one, redirect to its history."""
    try:
        return page_of(webhook_id, forms.blank())
    except NotFound:
        with transaction() as session:
            webhooks.require_history(session, caller(), ids.parse("whk", webhook_id))
        return redirect(url_for("console.deliveries.index", webhook_id=webhook_id), 303)


@blp.post("/<webhook_id>")
@signed_in(Role.ADMIN, whole_tenant=True)
def change(webhook_id: str) -> Response:
    """Hold, release, enable or disable a webhook, or change its fields."""
    typed = forms.sent()
    webhook = ids.parse("whk", webhook_id)
    try:
        wanted = typed.load(WebhookChangeSchema)
        settings = services().settings
        forms.once(lambda session: webhooks.change(session, caller(), settings, webhook, wanted))
    except Invalid as wrong:
        return page_of(webhook_id, typed.refused(wrong), 422)
    texts = [text for (name, value), text in _TEXTS.items() if wanted.get(name) == value]
    place = url_for(".show", webhook_id=webhook_id)
    if wanted.get("status") == "enabled" and _was_skipped(webhook):
        skipped = url_for("console.replays.new", webhook_id=webhook_id, status="skipped")
        return rendering.done(skipped, _TEXTS["skipped", True])
    return rendering.done(place, " ".join(texts) or "The webhook was changed.")


def _was_skipped(webhook: UUID | None) -> bool:
    """Say whether something happened while the webhook was disabled, and did not arrive since."""
    wanted = Wanted(statuses=frozenset({Status.SKIPPED}))
    with transaction(snapshot=True) as session:
        return bool(bulk_replay.preview(session, caller(), webhook, wanted, most=1).count)


@blp.post("/<webhook_id>/delete")
@signed_in(Role.ADMIN, whole_tenant=True)
def delete(webhook_id: str) -> Response:
    """Delete a webhook, if its name or id was typed as confirmation."""
    typed = forms.sent()

    def end(session: Session) -> None:
        found = webhooks.find(session, caller(), ids.parse("whk", webhook_id))
        told = represent(found)
        if typed.value("name").strip() not in (told["description"], told["url"], webhook_id):
            raise Invalid(FieldError("/name", "This is not its name."))
        webhooks.delete(session, caller(), found.id)

    try:
        forms.once(end)
    except Invalid as wrong:
        return page_of(webhook_id, typed.refused(wrong), 422)
    return rendering.done(url_for(".index"), "The webhook was deleted; its history stays.")


@blp.post("/<webhook_id>/test")
@signed_in(Role.WRITE, whole_tenant=True)
def test(webhook_id: str) -> Response:
    """Send a test event, and redirect to its delivery."""
    webhook = ids.parse("whk", webhook_id)
    made = forms.once(
        lambda session: delivery_history.represent(replay.fire_test(session, caller(), webhook))
    )
    place = url_for("console.deliveries.show", webhook_id=webhook_id, delivery_id=made["id"])
    return rendering.done(place, "A test event is on its way.")


@blp.post("/<webhook_id>/retry-now")
@signed_in(Role.WRITE, whole_tenant=True)
def retry_now(webhook_id: str) -> Response:
    """Retry all waiting deliveries now."""
    typed = forms.sent()
    webhook = ids.parse("whk", webhook_id)
    try:
        rate = typed.load(RetryNowSchema).get("rate")
        moved = forms.once(lambda session: send_now.all_of(session, caller(), webhook, rate))
    except Invalid as wrong:
        return page_of(webhook_id, typed.refused(wrong), 422)
    waited = "delivery that waited goes" if moved["count"] == 1 else "deliveries that waited go"
    text = f"{moved['count']:,} {waited} out now; this job tells what becomes of them."
    return rendering.done(url_for("console.jobs.show", job_id=moved["job_id"]), text)


def page_of(webhook_id: str, typed: Input, status: int = 200) -> Response:
    """Render a webhook's page, with the input of its forms. Raises `NotFound`."""
    here = services().settings
    with transaction(snapshot=True) as session:
        tenant_id = caller().tenant_id
        found = webhooks.find(session, caller(), ids.parse("whk", webhook_id))
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
        names={webhook_id: webhook["description"] or webhook["url"]},
        event_types=_event_types(),
        **shown,
        does=(f"webhooks show {webhook_id}", f"GET /v1/webhooks/{webhook_id}"),
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


def _new(typed: Input, status: int = 200) -> Response:
    return rendering.page(
        "webhooks/new", status, typed=typed, event_types=_event_types(), does=_ADDS
    )


def _event_types() -> list[tuple[str, str]]:
    return [(kind.value, kind.value) for kind in EventType if kind is not EventType.WEBHOOK_TEST]
