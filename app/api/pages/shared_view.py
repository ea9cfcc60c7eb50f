"""View model of a shared record's page: the bundle in plain words, cut to a readable length.

The text comes from agents, so it is not trusted: invisible characters and those that change the
direction of text are shown by their code points.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from app.api.http.services import services
from app.core.records import bundles
from app.evidence import bundle
from app.evidence.bundle import Bundle, Event, Step
from app.lib import indented_json
from app.lib.text_sanitizer import visible
from app.models import Record

MOST_STEPS = 200
MOST_EVENTS = 20
MOST_NAMES = 50
CONTENT_CHARACTERS = 60_000
DETAIL_CHARACTERS = 2_000

_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True)
class Cut:
    """A text to show; `more` says that it was truncated, `is_json` that it is no plain words."""

    text: str
    more: bool
    is_json: bool = True


@dataclass(frozen=True)
class ShownBundle:
    """A bundle's content and steps; `more_steps` is how many are left out."""

    content: Cut
    steps: list[dict[str, Any]]
    more_steps: int


def view_of(record: Record) -> ShownBundle | None:
    """Return what a page shows of a record's bundle; None once the bundle has expired."""
    here = services()
    with here.database.transaction(record.tenant_id) as session:
        raw = bundles.read(session, here.settings.master_keys, record.tenant_id, record.id)
    return None if raw is None else shown(bundle.read(raw))


def shown(read: Bundle) -> ShownBundle:
    """Return what a page shows of a bundle."""
    steps = read["steps"]
    return ShownBundle(
        content=indented(read["content"], CONTENT_CHARACTERS),
        steps=[_step(step) for step in steps[:MOST_STEPS]],
        more_steps=max(len(steps) - MOST_STEPS, 0),
    )


def _step(step: Step) -> dict[str, Any]:
    """Return a step with its times parsed, its duration, and its values truncated.

    `more_events` is how many events are left out.
    """
    events = step["events"]
    started_at, ended_at = map(datetime.fromisoformat, (step["started_at"], step["ended_at"]))
    return {
        **step,
        "started_at": started_at,
        "ended_at": ended_at,
        "took": _duration(ended_at - started_at),
        "inputs": _names(step.get("inputs", [])),
        "outputs": _names(step.get("outputs", [])),
        "attributes": _unless_empty(step["attributes"]),
        "events": [_event(each) for each in events[:MOST_EVENTS]],
        "more_events": max(len(events) - MOST_EVENTS, 0),
    }


def _event(event: Event) -> dict[str, Any]:
    at = datetime.fromisoformat(event["at"])
    return {**event, "at": at, "attributes": _unless_empty(event["attributes"])}


def _names(names: list[str] | dict[str, Any]) -> Cut | None:
    """Show names as a line of them, values by name as JSON."""
    if isinstance(names, dict):
        return _unless_empty(names)
    if not names:
        return None
    cut = _cut(", ".join(islice(names, MOST_NAMES)), DETAIL_CHARACTERS)
    return Cut(cut.text, cut.more or len(names) > MOST_NAMES, is_json=False)


def _unless_empty(value: Mapping[str, Any]) -> Cut | None:
    return indented(value, DETAIL_CHARACTERS) if value else None


def indented(value: Any, most: int) -> Cut:
    """Return JSON, indented, truncated to `most` characters."""
    return _cut(indented_json.beginning(value, most), most)


def _cut(text: str, most: int) -> Cut:
    if len(text) <= most:
        return Cut(visible(text), more=False)
    # At the end of a line, if there is one near.
    kept = text[:most]
    line_end = kept.rfind("\n", most // 2)
    return Cut(visible(kept if line_end < 0 else kept[:line_end]), more=True)


def _duration(took: timedelta) -> str:
    seconds = took.total_seconds()
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds * 1000:.0f} ms"
