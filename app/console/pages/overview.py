"""The overview: what needs attention, traffic, accounting, parts; the search box; saved views."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from flask import redirect, url_for
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, reads_objects, services, transaction
from app.api.resources import health
from app.api.resources.deliveries.deliveries import StatsArgs
from app.api.resources.search import SearchArgs
from app.console.frame import browser, forms, lists, navigation, rendering, zone
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.console.pages.deliveries import charted, known_webhooks, webhook_names
from app.core import lookup
from app.core.callers import Role
from app.core.delivery import accounting, hours
from app.core.delivery.history import failure_groups
from app.core.delivery.history.delivery_history import Status
from app.core.delivery.history.delivery_list import Filters
from app.core.digests import letters, schedule, sending, troubles
from app.core.health import probes
from app.core.health.parts import Part
from app.core.jobs import control as job_control
from app.core.keys import saved_views
from app.core.lookup import Hit, Type
from app.database import database_now
from app.errors import FieldError, Invalid
from app.models import Digest
from app.schemas import fields
from app.schemas.schema import Schema

blp = Pages("overview")

# Grouping takes a tenth of the page's time, and twice as long for twice as many.
_MOST_FAILED = 500
_REFUSED = {"recipient_refused": "its address", "content_refused": "what it says"}


class Need(NamedTuple):
    """An item of "needs attention": a sentence, and the page where to act on it."""

    text: str
    label: str
    place: str
    grave: bool = False


@blp.page("/overview")
def index() -> Response:
    """Show the overview."""
    typed = forms.query()
    parts = health.states()
    with transaction(snapshot=True) as session:
        args = typed.load_filters(StatsArgs)
        books = accounting.of_all(session, caller().tenant_id)
        webhooks = known_webhooks(session)
        needs = list(_needs(session, parts, books, webhooks))
        span = hours.span(
            database_now(session),
            args.get("since"),
            args.get("until"),
            args["step"],
            zone.chosen(),
        )
        traffic = charted(hours.traffic(session, caller().tenant_id, span), span)
        waited = hours.backlog(session, caller().tenant_id, span)
        for row, start in zip(traffic, span.starts, strict=True):
            row["waiting"] = waited.get(start, 0)
    return rendering.page(
        "overview/index",
        typed=typed,
        needs=needs,
        parts=probes.texts(parts),
        missing=probes.degraded(parts),
        traffic=traffic,
        step=args["step"],
        books=books,
        states=Counter(each["health"]["state"] for each in webhooks.values()),
        does=(f"webhooks stats --step {args['step']}", f"GET /v1/stats?step={args['step']}"),
    )


def _needs(
    session: Session,
    parts: list[Part],
    books: dict[str, Any],
    webhooks: dict[str, dict[str, Any]],
) -> Iterator[Need]:
    """Yield the items that need attention, gravest first."""
    names = webhook_names(webhooks)
    for each in troubles.of_tenant(session, caller().tenant_id):
        name = names.get(each.subject, each.name)
        text = f"{name} {each.what}, since {zone.words(each.since)}."
        yield Need(text, "Look at it", f"{browser.HOME}/{each.page}", each.kind in troubles.GRAVE)
    yield from _failures(session, books)
    for webhook_id, webhook in webhooks.items():
        if webhook["held"]:
            text = f"{names[webhook_id]} is held: what is accepted waits until it is released."
            place = url_for("console.webhooks.show", webhook_id=webhook_id)
            yield Need(text, "Look at it", place)
    dead = job_control.count_dead(session, caller().tenant_id)
    if dead:
        text = f"{dead:,} job{'s have' if dead > 1 else ' has'} given up."
        yield Need(text, "Look at them", url_for("console.jobs.index", status="dead"))
    yield from _mail(session)
    for part in parts:
        if part.name in probes.NEEDED and not part.is_ok:
            text = part.banner or f"{probes.NEEDED[part.name]}: {part.text}."
            if not part.is_known:
                text = f"How the {part.name.replace('_', ' ')} is doing is not known."
            yield Need(text, "See all parts", "#parts")


def _mail(session: Session) -> Iterator[Need]:
    """Yield whether the newest digest is refused for good."""
    for newest in sending.rows(session, Digest, caller().tenant_id, None, 1):
        what = _REFUSED.get(schedule.represent(newest)["status"])
        if what is not None:
            text = f"The mail server refuses the mail with new findings: {what}."
            yield Need(text, "See what it said", url_for("console.settings.mail"))


def _failures(session: Session, books: dict[str, Any]) -> Iterator[Need]:
    """Yield how many deliveries failed for good and were not replayed since.

    Only the newest are grouped; the books have counted all, also those no longer kept.
    """
    failed = Filters(status=frozenset((Status.FAILED,)))
    found = failure_groups.find(session, caller().tenant_id, failed, window=_MOST_FAILED)
    count = sum(group.count for group in found.groups)
    if found.complete and not count:
        return
    causes = "one cause" if len(found.groups) == 1 else f"{len(found.groups)} causes"
    text = f"were not replayed, of {causes}." if count > 1 else f"was not replayed, of {causes}."
    if found.complete:
        text = f"{letters.of(count, 'event')} failed for good and {text}"
    else:
        text = f"{count:,} {text}" if count else "all were replayed; older ones may wait."
        left = books["failed"] - books["arrived_by_replay"]
        in_all = f"{left:,} of {books['failed']:,} events that failed for good have not arrived by"
        text = f"{in_all} a replay. Of the newest {_MOST_FAILED:,}, {text}"
    page, label = ("groups", "See the causes") if count else ("index", "See what failed")
    place = url_for(f"console.deliveries.{page}", status="failed")
    yield Need(text, label, place, grave=count > 0)


search_blp = Pages("search", "/search", whole_tenant=False)


class BoxArgs(SearchArgs):
    """What is searched for; for a field that takes ids, by its name, what it may mean alone."""

    kind = fields.Text(50)


@search_blp.page("", endpoint="index")
@reads_objects
def find() -> Response:
    """Redirect to the only result, or list the results."""
    typed = forms.query()
    keys = services().settings.master_keys
    found: list[dict[str, Any]] = []
    with typed.refusing():
        if typed.value("q").strip():
            args = typed.load(BoxArgs)
            kinds = forms.kinds_of(args.get("kind", ""))
            with transaction() as session:
                hits = lookup.find(session, caller(), keys, args["q"], args["limit"], kinds)
            found = [{**lookup.represent(hit, ""), "place": _place(hit)} for hit in hits]
    if len(found) == 1 and "kind" not in typed.typed:
        return redirect(found[0]["place"], 303)
    return rendering.page(
        "search/index", typed=typed, found=found, does=("search WORDS", "GET /v1/search?q=WORDS")
    )


# These stand on the page of something else, or below it.
_WITHIN: dict[Type, Callable[[Hit], str]] = {
    Type.DELIVERY: lambda hit: url_for(
        "console.deliveries.show",
        webhook_id=ids.text("whk", hit.parent or hit.id),
        delivery_id=ids.text("dlv", hit.id),
    ),
    Type.SHARE_LINK: lambda hit: url_for(
        "console.records.show",
        record_id=ids.text("rec", hit.parent or hit.id),
        _anchor="share-links",
    ),
}


def _place(hit: Hit) -> str:
    """Return the URL of the console's page that shows the result."""
    if hit.type in _WITHIN:
        return _WITHIN[hit.type](hit)
    return navigation.place_of(lookup.represent(hit, "")["id"])


views_blp = Pages("views", "/views")

_LONGEST_QUERY = 4_000


class NameSchema(Schema):
    """The name of a view."""

    name = fields.Text(80, required=True)


class ViewSchema(NameSchema):
    """The list of a view, and the query that selects its rows."""

    page = fields.Text(40, required=True)
    query = fields.Text(_LONGEST_QUERY, required=True)


def _views(typed: Input, status: int = 200, **_: str) -> Response:
    with transaction() as session:
        shown = [
            {
                "id": ids.text("viw", each.id),
                "page": each.page,
                "name": each.name,
                "query": each.query,
                "place": url_for(f"console.{each.page}.index") + f"?{each.query}",
                "created_at": each.created_at,
            }
            for each in saved_views.rows(session, caller())
            if each.page in lists.LISTS
        ]
    return rendering.page("views/list", status, typed=typed, views=shown)


@views_blp.page("", endpoint="index")
def list_views() -> Response:
    """List all views."""
    return _views(forms.blank())


@views_blp.form("", Role.WRITE, again=_views)
def keep_view(typed: Input) -> Response:
    """Keep a list's filters under a name."""
    wanted = typed.load(ViewSchema)
    listed = lists.LISTS.get(wanted["page"])
    if listed is None:
        raise Invalid(FieldError("/page", "No list has this name."))
    pairs = [pair for pair in parse_qsl(wanted["query"]) if pair[0] not in ("cursor", "limit")]
    Input(MultiDict(pairs)).load(listed.args)
    forms.do(saved_views.create, listed.name, wanted["name"], urlencode(pairs))
    place = rendering.address(dict(MultiDict(pairs).lists()), f"console.{listed.name}.index")
    return rendering.done(place, f"The view “{wanted['name']}” is kept for everybody.")


@views_blp.form("/<view_id>/rename", Role.WRITE, again=_views)
def rename_view(typed: Input, view_id: UUID | None) -> Response:
    """Give a view another name."""
    name = typed.load(NameSchema)["name"]
    forms.do(saved_views.rename, view_id, name)
    return rendering.done(".index", f"The view is called “{name}” now.")


@views_blp.form("/<view_id>/delete", Role.WRITE)
def delete_view(view_id: UUID | None) -> Response:
    """Delete a view."""
    name = forms.do(saved_views.delete, view_id)
    return rendering.done(".index", f"The view “{name}” was deleted.")
