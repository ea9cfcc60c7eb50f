"""Webhooks: all of them, and one with what keeps it from being sent to."""

from typing import Any

from flask import Blueprint, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.access.auth import caller
from app.api.http.services import services
from app.api.http.transactions import transaction
from app.api.resources.deliveries.replay_schemas import RetryNowSchema
from app.api.resources.webhook_schemas import WebhookChangeSchema
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.console.pages.deliveries import known_webhooks
from app.core.callers import Role
from app.core.delivery import accounting
from app.core.delivery.history import delivery_history, standing, tenant_history
from app.core.delivery.history.tenant_history import TenantFilters
from app.core.replay import fire_test_event, send_now
from app.core.webhooks import webhooks
from app.errors import Invalid

blp = Blueprint("webhooks", __name__, url_prefix="/webhooks")

_LATEST = 10


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List the webhooks."""
    with transaction() as session:
        found = list(known_webhooks(session).values())
    return rendering.page("webhooks/list", found=found, does=("webhooks list", "GET /v1/webhooks"))


@blp.get("/<webhook_id>")
@signed_in(Role.READ, whole_tenant=True)
def show(webhook_id: str) -> Response:
    """Show one webhook."""
    return _page(webhook_id, forms.query())


@blp.post("/<webhook_id>/change")
@signed_in(Role.ADMIN, whole_tenant=True)
def change(webhook_id: str) -> Response:
    """Hold, release, enable or disable a webhook, or set what it is."""
    typed = forms.sent()
    try:
        wanted = typed.load(WebhookChangeSchema)
        with transaction() as session:
            forms.once(
                session,
                lambda: webhooks.represent(
                    webhooks.change(
                        session,
                        caller(),
                        services().settings,
                        ids.parse("whk", webhook_id),
                        wanted,
                    ),
                    caller(),
                ),
            )
    except Invalid as wrong:
        return _page(webhook_id, typed.refused(wrong), 422)
    return rendering.done(url_for(".show", webhook_id=webhook_id), "The webhook was changed.")


@blp.post("/<webhook_id>/test")
@signed_in(Role.WRITE, whole_tenant=True)
def test(webhook_id: str) -> Response:
    """Send a test event, and lead to its delivery."""
    webhook = ids.parse("whk", webhook_id)
    with transaction() as session:
        made = forms.once(
            session,
            lambda: delivery_history.represent(fire_test_event.fire(session, caller(), webhook)),
        )
    place = url_for("console.delivery.show", webhook_id=webhook_id, delivery_id=made["id"])
    return rendering.done(place, "A test event is on its way.")


@blp.post("/<webhook_id>/retry-now")
@signed_in(Role.WRITE, whole_tenant=True)
def retry_now(webhook_id: str) -> Response:
    """Send now what waits for its next attempt."""
    typed = forms.sent()
    webhook = ids.parse("whk", webhook_id)
    try:
        rate = typed.load(RetryNowSchema).get("rate")
        with transaction() as session:
            moved = forms.once(
                session,
                lambda: {"count": send_now.all_of(session, caller(), webhook, rate)},
            )
    except Invalid as wrong:
        return _page(webhook_id, typed.refused(wrong), 422)
    said = f"{moved['count']:,} deliveries that waited for their next attempt go out now."
    return rendering.done(url_for(".show", webhook_id=webhook_id), said)


def _page(webhook_id: str, typed: Input, status: int = 200) -> Response:
    with transaction(snapshot=True) as session:
        tenant_id = caller().tenant_id
        found = webhooks.find(session, caller(), ids.parse("whk", webhook_id))
        shown: dict[str, Any] = {
            "webhook": webhooks.represent(found, caller()),
            "lane": standing.of(session, tenant_id, found.id, "", [])["lane"],
            "books": accounting.of(session, tenant_id, found.id),
        }
        filters = TenantFilters(webhook_id=found.id)
        latest = tenant_history.page(session, tenant_id, filters, before=None, limit=_LATEST)
        shown["latest"] = [delivery_history.represent(each) for each in latest]
    name = shown["webhook"]["description"] or shown["webhook"]["url"]
    return rendering.page(
        "webhooks/one",
        status,
        typed=typed,
        names={webhook_id: name},
        **shown,
        does=(f"webhooks get {webhook_id}", f"GET /v1/webhooks/{webhook_id}"),
    )
