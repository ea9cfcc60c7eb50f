"""View model of a shared record's page: the bundle in plain words, cut to a readable length.

The text comes from agents, so it is not trusted: invisible characters and those that change the
direction of text are shown by their code points.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from app.evidence.bundle import Bundle, Step
from app.lib import indented_json
from app.lib.text_sanitizer import visible

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
class ShownEvent:
    """An event during a step."""

    name: str
    at: datetime
    attributes: Cut | None


@dataclass(frozen=True)
class ShownStep:
    """A step on the page; `more_events` is how many events are left out."""

    name: str
    kind: str
    started_at: datetime
    ended_at: datetime
    took: str
    status: str
    inputs: Cut | None
    outputs: Cut | None
    attributes: Cut | None
    events: list[ShownEvent]
    more_events: int


@dataclass(frozen=True)
class ShownBundle:
    """A bundle's content and steps; `more_steps` is how many are left out."""

    content: Cut
    steps: list[ShownStep]
    more_steps: int


def shown(bundle: Bundle) -> ShownBundle:
    """Return what the page shows of a bundle."""
    steps = bundle["steps"]
    return ShownBundle(
        content=indented(bundle["content"], CONTENT_CHARACTERS),
        steps=[_step(step) for step in steps[:MOST_STEPS]],
        more_steps=max(len(steps) - MOST_STEPS, 0),
    )


def _step(step: Step) -> ShownStep:
    events = step["events"]
    started_at, ended_at = map(datetime.fromisoformat, (step["started_at"], step["ended_at"]))
    return ShownStep(
        name=step["name"],
        kind=step["kind"],
        started_at=started_at,
        ended_at=ended_at,
        took=_duration(ended_at - started_at),
        status=step["status"],
        inputs=_names(step.get("inputs", [])),
        outputs=_names(step.get("outputs", [])),
        attributes=_unless_empty(step["attributes"]),
        events=[
            ShownEvent(
                event["name"],
                datetime.fromisoformat(event["at"]),
                _unless_empty(event["attributes"]),
            )
            for event in events[:MOST_EVENTS]
        ],
        more_events=max(len(events) - MOST_EVENTS, 0),
    )


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
