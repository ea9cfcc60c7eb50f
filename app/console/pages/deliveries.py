"""Deliveries of all webhooks: the list, and failures in groups."""

from typing import Any

from flask import Blueprint, request
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app.api.http.access.auth import caller
from app.api.http.paging import page_of
from app.api.http.transactions import transaction
from app.api.resources.deliveries.list_schemas import GroupArgs, TenantHistoryArgs
from app.api.resources.deliveries.tenant_deliveries import tenant_filters
from app.api.resources.webhooks import represent
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.core.callers import Role
from app.core.delivery.event_types import EventType
from app.core.delivery.history import delivery_history, failure_groups, tenant_history
from app.core.delivery.history.delivery_filters import Status
from app.core.webhooks import webhooks
from app.core.webhooks.webhooks import MOST_WEBHOOKS
from app.errors import Invalid

blp = Blueprint("deliveries", __name__)

OUTCOMES = (
    "succeeded",
    "refused",
    "timeout",
    "connect",
    "dns",
    "tls",
    "reset",
    "protocol",
    "refused_address",
    "bad_url",
    "worker_lost",
)
# This many failures are read and grouped in well under 100 ms; the API's route reads more.
_MOST_READ, _MOST_GROUPS = 3_000, 100
# Filters that a bulk replay has too; the others narrow the list alone.
_REPLAYED_BY = frozenset(("status", "webhook_id", "event_type", "since", "until", "group"))
_REPLAYABLE = frozenset((Status.FAILED, Status.CANCELLED))


@blp.get("/deliveries")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List deliveries, newest first, as the URL filters them."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    args: dict[str, Any] = {}
    with transaction(snapshot=True) as session:
        names = webhook_names(known_webhooks(session))
        try:
            args = typed.load(TenantHistoryArgs)
            filters = tenant_filters(args)
            found = page_of(
                args,
                lambda before, limit: tenant_history.page(
                    session, caller().tenant_id, filters, before=before, limit=limit
                ),
                delivery_history.represent,
            )
        except Invalid as wrong:
            typed = typed.refused(wrong)
    query = request.query_string.decode("ascii", "replace")
    return rendering.page(
        "deliveries/list",
        typed=typed,
        found=found,
        names=names,
        replayable=_is_replayable(args),
        filtered=sorted(args.keys() - {"limit", "cursor"}),
        choices=_choices(names),
        does=("deliveries list", f"GET /v1/deliveries{'?' if query else ''}{query}"),
    )


@blp.get("/deliveries/groups")
@signed_in(Role.READ, whole_tenant=True)
def groups() -> Response:
    """Group failures by webhook and cause."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "complete": True}
    with transaction(snapshot=True) as session:
        names = webhook_names(known_webhooks(session))
        try:
            args = typed.load(GroupArgs)
            filters = tenant_filters(args)
            groups = failure_groups.find(
                session, caller().tenant_id, filters, window=_MOST_READ, most=_MOST_GROUPS
            )
            found = failure_groups.represent(groups)
        except Invalid as wrong:
            typed = typed.refused(wrong)
    return rendering.page(
        "deliveries/groups",
        typed=typed,
        found=found,
        names=names,
        choices=_choices(names),
        does=("deliveries groups", "GET /v1/deliveries/groups"),
    )


def known_webhooks(session: Session) -> dict[str, dict[str, Any]]:
    """Return every webhook that was not deleted as its GET answers it, by its id."""
    rows = webhooks.rows(session, caller(), None, MOST_WEBHOOKS)
    shown = [represent(row) for row in rows]
    return {each["id"]: each for each in shown}


def webhook_names(known: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the displayed name of each webhook by its id: its description, or its URL."""
    return {name: each["description"] or each["url"] for name, each in known.items()}


def _choices(names: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    return {
        "webhook_id": list(names.items()),
        "status": [(status.value, status.value) for status in Status],
        "event_type": [(kind.value, kind.value) for kind in EventType],
        "outcome": [(outcome, outcome.replace("_", " ")) for outcome in OUTCOMES],
    }


def _is_replayable(args: dict[str, Any]) -> bool:
    """Return whether a bulk replay can select exactly what these filters list."""
    named = args.keys() - {"limit", "cursor"}
    if "group" in named:
        return named == {"group"}
    statuses = frozenset(args.get("status", (Status.FAILED,)))
    return named <= _REPLAYED_BY and statuses <= _REPLAYABLE
