"""The navigation: pages linked from every page, and which of them a caller may see."""

from dataclasses import dataclass
from typing import Any

from flask import url_for
from flask.globals import request_ctx
from werkzeug.exceptions import HTTPException

from app.console.frame.browser import HOME
from app.core.callers import Caller

NOWHERE = "console.nowhere"


@dataclass(frozen=True)
class Entry:
    """A page: its displayed name and its endpoint; a pinned key sees no `whole_tenant` page."""

    name: str
    endpoint: str
    whole_tenant: bool = True


ENTRIES = (
    Entry("Overview", "console.overview.index"),
    Entry("Deliveries", "console.deliveries.index"),
    Entry("Replays", "console.replays.index"),
    Entry("Webhooks", "console.webhooks.index"),
    Entry("Records", "console.records.index", whole_tenant=False),
    Entry("Findings", "console.findings.index", whole_tenant=False),
    Entry("Rules", "console.rules.index"),
    Entry("Sessions", "console.sessions.index", whole_tenant=False),
    Entry("Agents", "console.agents.index", whole_tenant=False),
    Entry("Traces", "console.traces.index", whole_tenant=False),
    Entry("Exports", "console.exports.index"),
    Entry("Holds", "console.holds.index"),
    Entry("Audit", "console.audit.index"),
    Entry("Keys", "console.keys.index", whole_tenant=False),
    Entry("Jobs", "console.jobs.index"),
    Entry("Settings", "console.settings.index"),
)


# The page of each kind of object, by the prefix of its id: endpoint, and argument for the id.
_PLACES = {
    "rec": ("records.show", "record_id"),
    "fnd": ("findings.show", "finding_id"),
    "ses": ("sessions.show", "session_id"),
    "agt": ("agents.show", "agent_id"),
    "evt": ("events.show", "event_id"),
    "whk": ("webhooks.show", "webhook_id"),
    "job": ("jobs.show", "job_id"),
    "dig": ("findings.index", "digest_id"),
    "key": ("keys.show", "key_id"),
    "usr": ("people.show", "person_id"),
    "rul": ("rules.show", "rule_id"),
    "exp": ("exports.show", "export_id"),
    "hld": ("holds.show", "hold_id"),
}


def place_of(text: str) -> str:
    """Return the URL of the page of the object with this id, such as `rec_…`."""
    endpoint, name = _PLACES[text.partition("_")[0]]
    named: dict[str, Any] = {name: text}
    return url_for(f"console.{endpoint}", **named)


def page_of_form(path: str) -> str | None:
    """Return the page with the form that posts to `path`; None if no form posts there."""
    if _endpoint(path, "POST") is None:
        return None
    while path.startswith(f"{HOME}/"):
        if _endpoint(path, "GET") not in (None, NOWHERE):
            return path
        path = path.rpartition("/")[0]
    return HOME


def entries_for(caller: Caller) -> list[Entry]:
    """Return the pages that this caller may see, in their order."""
    return [entry for entry in ENTRIES if caller.pin is None or not entry.whole_tenant]


def _endpoint(path: str, method: str) -> str | None:
    adapter = request_ctx.url_adapter
    try:
        return None if adapter is None else str(adapter.match(path, method=method)[0])
    except HTTPException:
        return None
