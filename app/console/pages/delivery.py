"""The page of a delivery: its outcome, attempts, bytes and siblings, its retry and its replay."""

import shlex
from typing import Any

from flask import Blueprint, url_for
from werkzeug.wrappers import Response

from app import ids
from app.api.http.access.auth import caller
from app.api.http.transactions import transaction
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.pages.deliveries import known_webhooks, webhook_names
from app.core.callers import Role
from app.core.delivery.history import delivery_history, delivery_summary
from app.core.replay import replay, send_now
from app.core.webhooks import webhooks

blp = Blueprint("delivery", __name__, url_prefix="/webhooks/<webhook_id>/deliveries/<delivery_id>")

_PHASES = ("dns", "connect", "tls", "first_byte")
# Linux allows 128 KiB.
_LONGEST_ARGUMENT = 100_000
# `$SECRET` is the webhook's, as it was shown once.
_AS_CURL = """\
SECRET='whsec_…'  # of this webhook
BODY={body}
NOW=$(date +%s)
KEY=$(printf %s "${{SECRET#whsec_}}" | base64 -d | od -An -v -tx1 | tr -d ' \\n')
SIGNATURE=$(printf %s "{event}.$NOW.$BODY" |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$KEY" -binary | base64)
curl --include {url} --data-binary "$BODY" --header 'content-type: application/json'{own} \\
  --header 'webhook-id: {event}' --header "webhook-timestamp: $NOW" \\
  --header "webhook-signature: v1,$SIGNATURE"
"""


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def show(webhook_id: str, delivery_id: str) -> Response:
    """Show the delivery, newest attempt first."""
    webhook, delivery = ids.parse("whk", webhook_id), ids.parse("dlv", delivery_id)
    with transaction(snapshot=True) as session:
        tenant_id = caller().tenant_id
        known = webhooks.require_history(session, caller(), webhook)
        found = delivery_history.find(session, tenant_id, known, delivery)
        told = delivery_history.describe(session, tenant_id, found)
        stands = delivery_summary.of(session, tenant_id, known, "", [found])
        siblings = delivery_history.of_event(session, tenant_id, found.row.event_id)
        named = known_webhooks(session)
        raw = delivery_history.payload_of(session, tenant_id, found.row.event_id)
    attempts = [{**each, "phases": _phases(each["timings"])} for each in told["attempts"][::-1]]
    shown = [delivery_history.represent(each) for each in siblings if each.id != found.id]
    longest = max((sum(ms for _, ms in each["phases"]) for each in attempts), default=0)
    return rendering.page(
        "deliveries/one",
        delivery=told,
        stands=stands,
        attempts=attempts,
        longest=longest,
        siblings=shown,
        under_way=_under_way(told, shown),
        names=webhook_names(named),
        size=None if raw is None else len(raw),
        curl=_curl(named.get(webhook_id), told["event_id"], raw),
        watched=told["finished_at"] is None,
        does=(
            f"deliveries show {delivery_id}",
            f"GET /v1/webhooks/{webhook_id}/deliveries/{delivery_id}",
        ),
    )


@blp.post("/replay")
@signed_in(Role.WRITE, whole_tenant=True)
def send_again(webhook_id: str, delivery_id: str) -> Response:
    """Replay the event at once, and redirect to the new delivery."""
    webhook, delivery = ids.parse("whk", webhook_id), ids.parse("dlv", delivery_id)
    with transaction() as session:
        made = forms.once(
            session,
            lambda: delivery_history.represent(replay.replay(session, caller(), webhook, delivery)),
        )
    place = url_for(".show", webhook_id=webhook_id, delivery_id=made["id"])
    return rendering.done(place, "It is sent again: this is the new delivery of the same event.")


@blp.post("/retry-now")
@signed_in(Role.WRITE, whole_tenant=True)
def retry_now(webhook_id: str, delivery_id: str) -> Response:
    """Make the next attempt due now."""
    webhook, delivery = ids.parse("whk", webhook_id), ids.parse("dlv", delivery_id)

    def bring_forward() -> dict[str, Any]:
        send_now.one(session, caller(), webhook, delivery)
        return {"count": 1, "job_id": None}

    with transaction() as session:
        forms.once(session, bring_forward)
    place = url_for(".show", webhook_id=webhook_id, delivery_id=delivery_id)
    return rendering.done(place, "Its next attempt goes out now.")


def _under_way(delivery: dict[str, Any], siblings: list[dict[str, Any]]) -> str | None:
    """Return a replay that will send an ended delivery's event again; None without one."""
    open_ones = (
        each["id"]
        for each in siblings
        if each["kind"] == "replay" and each["webhook_id"] == delivery["webhook_id"]
        if each["finished_at"] is None and delivery["finished_at"] is not None
    )
    return next(open_ones, None)


def _phases(timings: dict[str, float | None]) -> list[tuple[str, float]]:
    """Return each phase of an attempt with its length in milliseconds, the answer's rest last."""
    known = [(name, timings[name] or 0.0) for name in _PHASES]
    rest = (timings["total"] or 0.0) - sum(ms for _, ms in known)
    return [(name, ms) for name, ms in [*known, ("answer", max(rest, 0.0))] if ms > 0]


def _curl(webhook: dict[str, Any] | None, event_id: str, raw: bytes | None) -> str | None:
    """Return shell commands that send the event as the service does; None if a shell cannot."""
    if webhook is None or raw is None or len(raw) > _LONGEST_ARGUMENT:
        return None
    body, url = shlex.quote(raw.decode()), shlex.quote(webhook["url"])
    own = "".join(f" --header {shlex.quote(f'{name}: …')}" for name in webhook["headers"] or ())
    return _AS_CURL.format(body=body, event=event_id, url=url, own=own)
