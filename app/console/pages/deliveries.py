"""Deliveries of all webhooks: the list, failures in groups, the page of one, and of an event."""

import shlex
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from flask import request, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.api.resources.deliveries.deliveries import list_tenant_deliveries, tenant_filters
from app.api.resources.deliveries.delivery_schemas import GroupArgs
from app.api.resources.webhooks import represent
from app.clock import rfc3339
from app.console.frame import forms, lists, navigation, rendering, zone
from app.console.frame.access import Pages
from app.core import lookup
from app.core.callers import Role
from app.core.delivery import accounting, hours
from app.core.delivery.event_types import EventType
from app.core.delivery.history import (
    delivery_history,
    event_history,
    failure_groups,
)
from app.core.delivery.history.delivery_history import Status
from app.core.delivery.hours import Span
from app.core.replay import replay, send_now
from app.core.webhooks import webhooks
from app.core.webhooks.webhooks import MOST_WEBHOOKS

blp = Pages("deliveries")

_OUTCOMES = (
    *("succeeded", "refused", "timeout", "connect", "dns", "tls", "reset", "protocol"),
    *("refused_address", "bad_url", "worker_lost"),
)
# This many failures are read and grouped in well under 100 ms; the API's route reads more.
_MOST_READ, _MOST_GROUPS = 3_000, 100
# Filters that a bulk replay has too; the others narrow the list alone.
_REPLAYED_BY = frozenset(("status", "webhook_id", "event_type", "since", "until", "group"))
_REPLAYABLE = frozenset((Status.FAILED, Status.CANCELLED))
_DELIVERY = "/webhooks/<webhook_id>/deliveries/<delivery_id>"
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


def _beside(session: Session, args: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return what the list of deliveries shows of their webhooks and events, and offers."""
    known = known_webhooks(session)
    names = webhook_names(known)
    query = request.query_string.decode("ascii", "replace")
    return {
        "names": names,
        "subjects": subjects(session, {row["event_id"] for row in found["data"]}),
        "paused": {
            name: each["health"]["paused_until"]
            for name, each in known.items()
            if each["health"]["state"] == "paused"
        },
        "ended": _count_ended(session, args),
        "offer": _offer(args, found, known),
        "choices": _choices(names),
        "does": ("deliveries list", f"GET /v1/deliveries{'?' if query else ''}{query}"),
    }


lists.serve(
    blp,
    "deliveries",
    list_tenant_deliveries,
    "/deliveries",
    files=True,
    beside=_beside,
)


@blp.page("/deliveries/groups")
def groups() -> Response:
    """Group failures by webhook and cause."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "complete": True}
    books: dict[str, Any] | None = None
    with transaction(snapshot=True) as session:
        known = known_webhooks(session)
        names = webhook_names(known)
        with typed.refusing():
            args = typed.load(GroupArgs)
            filters = tenant_filters(args)
            groups = failure_groups.find(
                session, caller().tenant_id, filters, window=_MOST_READ, most=_MOST_GROUPS
            )
            found = failure_groups.represent(groups)
            if not groups.complete and not filters_named(args):
                books = accounting.of_all(session, caller().tenant_id)
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


@blp.page(_DELIVERY)
def show(webhook_id: UUID | None, delivery_id: UUID | None) -> Response:
    """Show the delivery, newest attempt first."""
    with transaction(snapshot=True) as session:
        tenant_id = caller().tenant_id
        known = webhooks.require_history(session, caller(), webhook_id)
        found = delivery_history.find(session, tenant_id, known, delivery_id)
        told = delivery_history.describe(session, tenant_id, found)
        stands = event_history.summary_of(session, tenant_id, known, "", [found])
        siblings = event_history.of_event(session, tenant_id, found.event_id)
        named = known_webhooks(session)
        raw = delivery_history.payload_of(session, tenant_id, found.event_id)
        about = subjects(session, [told["event_id"]])
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
        subjects=about,
        under_way=_under_way(told, shown),
        names=webhook_names(named),
        size=None if raw is None else len(raw),
        curl=_curl(named.get(told["webhook_id"]), told["event_id"], raw),
        watched=told["finished_at"] is None,
        does=(
            "deliveries show {delivery_id}",
            "GET /v1/webhooks/{webhook_id}/deliveries/{delivery_id}",
        ),
    )


@blp.form(f"{_DELIVERY}/replay", Role.WRITE)
def send_again(webhook_id: UUID | None, delivery_id: UUID | None) -> Response:
    """Replay the event at once, and redirect to the new delivery."""
    made = forms.do(replay.replay, webhook_id, delivery_id, show=delivery_history.represent)
    text = "It is sent again: this is the new delivery of the same event."
    return rendering.done(".show", text, delivery_id=made["id"])


@blp.form(f"{_DELIVERY}/retry-now", Role.WRITE)
def retry_now(webhook_id: UUID | None, delivery_id: UUID | None) -> Response:
    """Make the next attempt due now."""
    forms.do(send_now.one, webhook_id, delivery_id)
    return rendering.done(".show", "Its next attempt goes out now.")


@blp.page("/events/<event_id>")
def show_event(event_id: UUID | None) -> Response:
    """Show one event."""
    with transaction(snapshot=True) as session:
        found = event_history.find(session, caller(), event_id)
        event = event_history.describe(session, found)
        about = subjects(session, [event["id"]])
        size = len(delivery_history.payload_of(session, found.tenant_id, found.id) or b"")
        known = known_webhooks(session)
    return rendering.page(
        "deliveries/event",
        event=event,
        size=size,
        subjects=about,
        names=webhook_names(known),
        states={name: each["health"]["state"] for name, each in known.items()},
        does=("search {event_id}", "GET /v1/events/{event_id}"),
    )


def known_webhooks(session: Session) -> dict[str, dict[str, Any]]:
    """Return every webhook that was not deleted as its GET answers it, by its id."""
    rows = webhooks.rows(session, caller(), None, MOST_WEBHOOKS)
    shown = [represent(row) for row in rows]
    return {each["id"]: each for each in shown}


def webhook_names(known: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the displayed name of each webhook by its id: its description, or its URL."""
    return {name: each["description"] or each["url"] for name, each in known.items()}


def subjects(session: Session, event_ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Return what each event is about, by the event's id: its id, title and page."""
    wanted = [found for text in event_ids if (found := ids.parse("evt", text))]
    about = event_history.subjects(session, caller().tenant_id, wanted)
    titles = lookup.titles(session, caller(), about.values())
    return {
        event: {"id": one, "title": titles[one], "place": navigation.place_of(one)}
        for event, one in about.items()
        if one in titles
    }


def charted(
    rows: Sequence[dict[str, Any]], span: Span, webhook_id: UUID | None = None
) -> list[dict[str, Any]]:
    """Return rows of `hours` for a chart: with a label, and links to what they count."""
    starts = [*span.starts, span.until]
    shown = []
    for row, since, until in zip(rows, span.starts, starts[1:], strict=True):
        asked: dict[str, Any] = {"finished_since": rfc3339(since), "finished_until": rfc3339(until)}
        links = {
            name: url_for("console.deliveries.index", status=name, webhook_id=webhook_id, **asked)
            for name in ("succeeded", "failed")
        }
        shown.append({**row, "label": zone.label(since, span.step), "links": links})
    return shown


def _count_ended(session: Session, args: dict[str, Any]) -> int | None:
    """Return how many deliveries a list of what ended in whole hours has; None for another."""
    statuses = set(args.get("status", ()))
    named = filters_named(args) - {"webhook_id"}
    since, until = args.get("finished_since"), args.get("finished_until")
    if since is None or until is None or named != {"status", "finished_since", "finished_until"}:
        return None
    whole = not any(each.minute or each.second or each.microsecond for each in (since, until))
    if not whole or since >= until or not statuses <= {Status.SUCCEEDED, Status.FAILED}:
        return None
    counts = hours.ended(session, caller().tenant_id, since, until, args.get("webhook_id"))
    return sum(counts[status] for status in statuses)


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
        "status": forms.choices(Status),
        "event_type": forms.choices(EventType),
        "outcome": [(outcome, outcome.replace("_", " ")) for outcome in _OUTCOMES],
    }


def _offer(
    args: dict[str, Any], found: dict[str, Any], known: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return what can be done with a page of deliveries.

    `pick`: a replay takes some of them; `replay`: it can select exactly what the filters list;
    `retry`: the one webhook of those that wait.
    """
    rows = found["data"]
    pick = any(row["status"] in _REPLAYABLE and row["arrived_by_replay"] is None for row in rows)
    waits = any(row["status"] in ("pending", "retrying") for row in rows)
    group = args.get("group")
    one = args.get("webhook_id") if group is None else group.webhook_id
    named = None if one is None else ids.text("whk", one)
    return {
        "pick": pick,
        "replay": _is_replayable(args) and (pick or found["next_cursor"] is not None),
        "retry": named if waits and named in _sending(known) else None,
    }


def _is_replayable(args: dict[str, Any]) -> bool:
    """Return whether a bulk replay can select exactly what these filters list."""
    named = filters_named(args)
    statuses = frozenset(args.get("status", (Status.FAILED,)))
    if "group" in named:
        return named <= {"group", "status"} and statuses == {Status.FAILED}
    return named <= _REPLAYED_BY and statuses <= _REPLAYABLE


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
