"""Deliveries of all webhooks: the list, and failures in groups."""

from typing import Any

from flask import Blueprint, request
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.access.auth import caller
from app.api.http.paging import page_of
from app.api.http.transactions import transaction
from app.api.resources.deliveries.deliveries import tenant_filters
from app.api.resources.deliveries.delivery_schemas import GroupArgs, TenantHistoryArgs
from app.api.resources.webhooks import represent
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.core.callers import Role
from app.core.delivery import accounting
from app.core.delivery.event_types import EventType
from app.core.delivery.history import delivery_history, delivery_list, failure_groups
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
        known = known_webhooks(session)
        names = webhook_names(known)
        try:
            args = typed.load(TenantHistoryArgs)
            filters = tenant_filters(args)
            found = page_of(
                args,
                lambda before, limit: delivery_list.page(
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
        offer=_offer(args, found, known),
        filtered=sorted(filters_named(args)),
        choices=_choices(names),
        does=("deliveries list", f"GET /v1/deliveries{'?' if query else ''}{query}"),
    )


@blp.get("/deliveries/groups")
@signed_in(Role.READ, whole_tenant=True)
def groups() -> Response:
    """Group failures by webhook and cause."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "complete": True}
    books: dict[str, Any] | None = None
    with transaction(snapshot=True) as session:
        known = known_webhooks(session)
        names = webhook_names(known)
        try:
            args = typed.load(GroupArgs)
            filters = tenant_filters(args)
            groups = failure_groups.find(
                session, caller().tenant_id, filters, window=_MOST_READ, most=_MOST_GROUPS
            )
            found = failure_groups.represent(groups)
            if not groups.complete and not filters_named(args):
                books = accounting.of_all(session, caller().tenant_id)
        except Invalid as wrong:
            typed = typed.refused(wrong)
    return rendering.page(
        "deliveries/groups",
        typed=typed,
        found=found,
        books=books,
        names=names,
        sending=_sending(known),
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


def filters_named(args: dict[str, Any]) -> set[str]:
    """Return the names of the filters in a list's arguments."""
    return args.keys() - {"limit", "cursor"}


def _sending(known: dict[str, dict[str, Any]]) -> set[str]:
    """Return the webhooks that are sent what waits for them."""
    return {
        name for name, each in known.items() if each["status"] == "enabled" and not each["held"]
    }


def _choices(names: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    return {
        "webhook_id": list(names.items()),
        "status": [(status.value, status.value) for status in Status],
        "event_type": [(kind.value, kind.value) for kind in EventType],
        "outcome": [(outcome, outcome.replace("_", " ")) for outcome in OUTCOMES],
    }


def _offer(
    args: dict[str, Any], found: dict[str, Any], known: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return what can be done with a page of deliveries.

    `pick`: a replay takes some of them; `replay`: it can select exactly what the filters list;
    `retry`: the one webhook of those that wait.
    """
    rows = found["data"]
    pick = any(_takes_replay(row) for row in rows)
    waits = any(row["status"] in ("pending", "retrying") for row in rows)
    group = args.get("group")
    one = args.get("webhook_id") if group is None else group.webhook_id
    named = None if one is None else ids.text("whk", one)
    return {
        "pick": pick,
        "replay": _is_replayable(args) and (pick or found["next_cursor"] is not None),
        "retry": named if waits and named in _sending(known) else None,
    }


def _takes_replay(row: dict[str, Any]) -> bool:
    return row["status"] in _REPLAYABLE and row["arrived_by_replay"] is None


def _is_replayable(args: dict[str, Any]) -> bool:
    """Return whether a bulk replay can select exactly what these filters list."""
    named = filters_named(args)
    if "group" in named:
        return named == {"group"}
    statuses = frozenset(args.get("status", (Status.FAILED,)))
    return named <= _REPLAYED_BY and statuses <= _REPLAYABLE
