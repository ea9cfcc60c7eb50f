"""The navigation: pages linked from every page, and which of them a caller may see."""

from dataclasses import dataclass
from typing import Any

from flask import request, url_for
from flask.globals import request_ctx
from werkzeug.exceptions import HTTPException

from app.console.frame.browser import HOME
from app.core.callers import Caller, Role

NOWHERE = "console.nowhere"


@dataclass(frozen=True)
class Entry:
    """A page: its displayed name and its endpoint; a pinned key sees no `whole_tenant` page.

    Who has not the `role` does not see it. `g`, then its `letter`, leads to it.
    """

    name: str
    endpoint: str
    whole_tenant: bool = True
    role: Role = Role.READ
    letter: str = ""


# The first row of the navigation, and under each name the second.
GROUPS: dict[str, tuple[Entry, ...]] = {
    "Overview": (
        Entry("Overview", "console.overview.index", letter="o"),
        Entry("Jobs", "console.jobs.index", letter="j"),
        Entry("Saved views", "console.views.index", letter="v"),
    ),
    "Records": (
        Entry("Records", "console.records.index", whole_tenant=False, letter="r"),
        Entry("Sessions", "console.sessions.index", whole_tenant=False, letter="s"),
        Entry("Agents", "console.agents.index", whole_tenant=False, letter="a"),
        Entry("Traces", "console.traces.index", whole_tenant=False, letter="t"),
    ),
    "Findings": (
        Entry("Findings", "console.findings.index", whole_tenant=False, letter="f"),
        Entry("Rules", "console.rules.index", letter="u"),
    ),
    "Deliveries": (
        Entry("Deliveries", "console.deliveries.index", letter="d"),
        Entry("Failures", "console.deliveries.groups", letter="x"),
        Entry("Replays", "console.replays.index", letter="p"),
        Entry("Webhooks", "console.webhooks.index", letter="w"),
    ),
    "Audit": (
        Entry("Audit chain", "console.audit.index", letter="c"),
        Entry("Anchors", "console.audit.anchor_list", letter="n"),
        Entry("Exports", "console.exports.index", letter="e"),
        Entry("Holds", "console.holds.index", letter="h"),
    ),
    "Settings": (
        Entry("Settings", "console.settings.index", letter="i"),
        Entry("Keys", "console.keys.index", whole_tenant=False, letter="k"),
        Entry("Alerts", "console.settings.alert_mails", letter="m"),
        Entry("Sign-ins", "console.people.index", role=Role.ADMIN, letter="l"),
    ),
}


# The page of each kind of object, by the prefix of its id: endpoint, and argument for the id.
_PLACES = {
    "rec": ("records.show", "record_id"),
    "fnd": ("findings.show", "finding_id"),
    "ses": ("sessions.show", "session_id"),
    "agt": ("agents.show", "agent_id"),
    "evt": ("deliveries.show_event", "event_id"),
    "whk": ("webhooks.show", "webhook_id"),
    "job": ("jobs.show", "job_id"),
    "dig": ("findings.index", "digest_id"),
    "key": ("keys.show", "key_id"),
    "usr": ("people.show", "person_id"),
    "rul": ("rules.show", "rule_id"),
    "exp": ("exports.show", "export_id"),
    "hld": ("holds.show", "hold_id"),
}


def page_of(text: str) -> str | None:
    """Return the URL of the page of the object with this id; None where its kind has no page."""
    return place_of(text) if text.partition("_")[0] in _PLACES else None


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


def groups_for(caller: Caller) -> dict[str, list[Entry]]:
    """Return the pages that this caller may see by their group, in their order."""
    seen = {
        name: [
            entry
            for entry in entries
            if (caller.pin is None or not entry.whole_tenant) and caller.role.allows(entry.role)
        ]
        for name, entries in GROUPS.items()
    }
    return {name: entries for name, entries in seen.items() if entries}


def current(groups: dict[str, list[Entry]], section: str) -> tuple[str | None, Entry | None]:
    """Return the group and the entry of the page that answers this request.

    An entry's own endpoint goes before its section: the folder of the page's template.
    """
    here = {entry: name for name, entries in groups.items() for entry in entries}
    exact = (entry for entry in here if entry.endpoint == request.endpoint)
    near = (entry for entry in here if section == entry.endpoint.split(".")[1])
    found = next(exact, None) or next(near, None)
    return (None, None) if found is None else (here[found], found)


def _endpoint(path: str, method: str) -> str | None:
    adapter = request_ctx.url_adapter
    try:
        return None if adapter is None else str(adapter.match(path, method=method)[0])
    except HTTPException:
        return None
