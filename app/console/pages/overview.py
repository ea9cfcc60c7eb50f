"""The overview: items that need attention, the traffic, the accounting, and the service's parts."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from flask import url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app.api.http.services import caller, transaction
from app.api.resources import health
from app.api.resources.deliveries.deliveries import StatsArgs
from app.console.frame import browser, forms, rendering, zone
from app.console.frame.access import Pages
from app.console.pages.deliveries.deliveries import charted, known_webhooks, webhook_names
from app.core.delivery import accounting, hours
from app.core.delivery.history import failure_groups
from app.core.delivery.history.delivery_history import Status
from app.core.delivery.history.delivery_list import Filters
from app.core.digests import digest_history, sending, troubles
from app.core.health import probes
from app.core.health.parts import Part
from app.core.jobs import control as job_control
from app.database import database_now
from app.models import Digest

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
        args = StatsArgs().load({})
        with typed.refusing():
            args = typed.load(StatsArgs)
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
        what = _REFUSED.get(digest_history.represent(newest)["status"])
        if what is not None:
            text = f"The mail server refuses the mail with new findings: {what}."
            yield Need(text, "See what it said", url_for("console.settings.mail"))


def _failures(session: Session, books: dict[str, Any]) -> Iterator[Need]:
    """Yield how many deliveries failed for good and were not replayed since.

    Only the newest are grouped; the books have counted all, also those no longer kept.
    """
    failed = Filters(status=frozenset((Status.FAILED,)))
    found = failure_groups.find(session, caller().tenant_id, failed, window=_MOST_FAILED)
    count = sum(group.count for group, _ in found.groups)
    left = books["failed"] - books["arrived_by_replay"]
    in_all = f"{left:,} of {books['failed']:,} events that failed for good have not arrived by a "
    in_all += f"replay. Of the newest {_MOST_FAILED:,}, "
    if count:
        causes = "one cause" if len(found.groups) == 1 else f"{len(found.groups)} causes"
        were = "were" if count > 1 else "was"
        if found.complete:
            text = f"{count:,} event{'s' if count > 1 else ''} failed for good and {were} not "
            text += f"replayed, of {causes}."
        else:
            text = f"{in_all}{count:,} {were} not replayed, of {causes}."
        place = url_for("console.deliveries.groups", status="failed")
        yield Need(text, "See the causes", place, grave=True)
    elif not found.complete:
        text = f"{in_all}all were replayed; older ones may wait."
        place = url_for("console.deliveries.index", status="failed")
        yield Need(text, "See what failed", place)
