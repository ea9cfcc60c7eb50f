"""A bundle and findings as a page for people: HTML without script, and nothing from elsewhere.

Values are truncated, steps are a tree with their place in time: a page shows at most some million
characters, however large the bundle is. The same arguments give the same bytes, of a pack's
`record.html` too.
"""

import base64
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.evidence.bundle import Agent, Bundle, Event, Step
from app.evidence.times import unix_nanoseconds
from app.lib import indented_json
from app.lib.text_sanitizer import visible

MOST_STEPS = 200
MOST_EVENTS = 20
MOST_NAMES = 50
MOST_APPROVALS = 50
MOST_FINDINGS = 50
_MOST_FAILED = 10
CONTENT_CHARACTERS = 60_000
DETAIL_CHARACTERS = 2_000
PAGE_CHARACTERS = 1_000_000
"""The most characters of steps' values on a page; after them values are left out."""
# Content under other names than a step's inputs and outputs, and in its place when it is left out.
_CONTENT = (
    *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt", "gen_ai.completion"),
    *("llm.input_messages", "llm.output_messages", "traceloop.entity", "ai.prompt", "ai.response"),
    *("user_prompt", "full_command"),
)
_EVENTS_OF_CONTENT = ("tool.output", "gen_ai.choice")
_LEFT_OUT = (None, "", "<REDACTED>", "__REDACTED__")
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True)
class Cut:
    """A text to show; `more` says that it was truncated, `is_json` that it is no plain words."""

    text: str
    more: bool
    is_json: bool = True


@dataclass(frozen=True)
class ShownBundle:
    """A bundle's content, steps and approvals.

    Of `all_steps` there are `steps` after the first `before`; `more_steps` come after them.
    `failed` are the numbers, from 1, of the first that failed, on any page.
    `captured` is false when telemetry sent the steps without any input or output. `agent` is as it
    was named when the record was signed; a bundle of version 1 has its id alone.
    """

    agent: Agent
    content: Cut
    steps: list[dict[str, Any]]
    more_steps: int
    before: int = 0
    all_steps: int = 0
    failed: list[int] = field(default_factory=list)
    approvals: list[dict[str, Any]] = field(default_factory=list)
    captured: bool = True


class Axis:
    """A time axis on which idle time has no length: `spans` are what happened, in nanoseconds."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        """Join spans that touch."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._before: list[int] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
                continue
            self._before.append(self._busy())
            self._starts.append(start)
            self._ends.append(end)
        self._whole = max(self._busy(), 1)

    def place(self, span: tuple[int, int]) -> tuple[float, float]:
        """Return where one of the spans begins and its length, in thousandths of the axis."""
        start, end = span
        nth = bisect_right(self._starts, start) - 1
        begin = self._before[nth] + start - self._starts[nth]
        return 1000 * begin / self._whole, 1000 * (end - start) / self._whole

    def _busy(self) -> int:
        return self._before[-1] + self._ends[-1] - self._starts[-1] if self._ends else 0


def span_of(step: Step) -> tuple[int, int]:
    """Return a step's start and end in nanoseconds; without an end after its start, a moment."""
    start = unix_nanoseconds(step["started_at"])
    ended_at = step.get("ended_at")
    return start, start if ended_at is None else max(unix_nanoseconds(ended_at), start)


def as_tree(steps: Sequence[Step]) -> list[tuple[int, Step]]:
    """Return each step with its depth: parents before their children, siblings by start.

    A step whose parent is not there is at depth 0; so is the first of a circle of parents.
    """
    by_start = sorted(steps, key=lambda step: unix_nanoseconds(step["started_at"]))
    known = {step.get("span_id") for step in steps} - {None}
    below: dict[object, list[Step]] = {}
    roots = []
    for step in by_start:
        parent = step.get("parent_span_id")
        if parent in known:
            below.setdefault(parent, []).append(step)
        else:
            roots.append(step)
    found: list[tuple[int, Step]] = []
    seen: set[int] = set()
    # Those of a circle have no way from a root: they come last.
    for root in (*roots, *by_start):
        waiting = [(0, root)]
        while waiting:
            depth, step = waiting.pop()
            if id(step) in seen:
                continue
            seen.add(id(step))
            found.append((depth, step))
            # Of several steps with one id the first has the children.
            children = below.pop(step.get("span_id"), ())
            waiting += [(depth + 1, child) for child in reversed(children)]
    return found


class _Budget:
    """How many characters of values a page may still show."""

    def __init__(self) -> None:
        self.left = PAGE_CHARACTERS

    def spend(self, cut: Cut | None) -> Cut | None:
        """Return the cut, or one without text once too much was shown."""
        if cut is None:
            return None
        self.left -= len(cut.text)
        return cut if self.left > 0 else Cut("", more=True)

    def events(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """Return the first events, as far as their names fit too."""
        found = []
        for each in events[:MOST_EVENTS]:
            self.left -= len(visible(each["name"]))
            if self.left <= 0:
                break
            attributes = self.spend(_unless_empty(each["attributes"]))
            at = datetime.fromisoformat(each["at"])
            found.append({**each, "at": at, "attributes": attributes})
        return found


def shown(read: Bundle, before: int = 0) -> ShownBundle:
    """Return what a page shows of a bundle: its steps after so many, at least the last ones."""
    steps = read["steps"]
    axis, budget = Axis(map(span_of, steps)), _Budget()
    tree = as_tree(steps)
    before = min(before, max(len(tree) - 1, 0) // MOST_STEPS * MOST_STEPS)
    here = tree[before : before + MOST_STEPS]
    is_telemetry = any("span_id" in step for step in steps)
    return ShownBundle(
        agent=read["record"]["agent"],
        content=indented(read["content"], CONTENT_CHARACTERS),
        steps=[_step(depth, step, axis, budget) for depth, step in here],
        more_steps=max(len(tree) - before - len(here), 0),
        before=before,
        all_steps=len(tree),
        failed=list(
            islice(
                (n for n, (_, step) in enumerate(tree, 1) if step["status"] == "error"),
                _MOST_FAILED,
            )
        ),
        approvals=[
            {
                **each,
                "note": _cut(each.get("note", ""), DETAIL_CHARACTERS).text,
                "at": datetime.fromisoformat(each["at"]),
            }
            for each in read.get("approvals", [])[:MOST_APPROVALS]
        ],
        captured=not is_telemetry or any(map(_has_content, steps)),
    )


def row_of(depth: int, step: Step, axis: Axis) -> dict[str, Any]:
    """Return a step's row of a waterfall: its name, depth, duration, and its bar's place."""
    span = span_of(step)
    begin, length = axis.place(span)
    return {
        "name": step["name"],
        "kind": step["kind"],
        "status": step["status"],
        "depth": depth,
        "begin": begin,
        "length": length,
        "took": "did not end" if step.get("ended_at") is None else duration(span),
    }


def duration(span: tuple[int, int]) -> str:
    """Write how long a span of nanoseconds is: `1.4 s`."""
    seconds = (span[1] - span[0]) / 1e9
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds * 1000:.0f} ms"


def indented(value: Any, most: int) -> Cut:
    """Return JSON, indented, truncated to `most` characters."""
    return _cut(indented_json.beginning(value, most), most)


def _has_content(step: Step) -> bool:
    """Say whether a step of telemetry has a message, an argument or a result."""
    sides = (step.get(side, {}) for side in ("inputs", "outputs"))
    values = [value for side in sides if isinstance(side, dict) for value in side.values()]
    for of in (step["attributes"], *(event["attributes"] for event in step["events"])):
        values += [
            of[name] for name in of if any(f"{name}.".startswith(f"{each}.") for each in _CONTENT)
        ]
    return any(value not in _LEFT_OUT for value in values) or any(
        event["name"] in _EVENTS_OF_CONTENT and event["attributes"] for event in step["events"]
    )


def _step(depth: int, step: Step, axis: Axis, budget: _Budget) -> dict[str, Any]:
    """Return a step with its times parsed, its place, and its values truncated.

    `more_events` is how many events are left out.
    """
    ended_at, budget.left = step.get("ended_at"), budget.left - len(visible(step["name"]))
    events = budget.events(step["events"])
    return {
        **step,
        **row_of(depth, step, axis),
        "started_at": datetime.fromisoformat(step["started_at"]),
        "ended_at": None if ended_at is None else datetime.fromisoformat(ended_at),
        "inputs": budget.spend(_names(step.get("inputs", []))),
        "outputs": budget.spend(_names(step.get("outputs", []))),
        "attributes": budget.spend(_unless_empty(step["attributes"])),
        "events": events,
        "more_events": len(step["events"]) - len(events),
    }


def shown_findings(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what a page shows of the first findings, given as their GET answers.

    `version` is that of the rule which made one, else None.
    """
    found = []
    for each in listed[:MOST_FINDINGS]:
        is_by_rule = each["source"] == "rule" and isinstance(each["data"], dict)
        by = each["data"].get("rule") if is_by_rule else None
        found.append(
            {
                **each,
                "version": by.get("version") if isinstance(by, dict) else None,
                "detail": _cut(each["detail"] or "", DETAIL_CHARACTERS),
                "at": datetime.fromisoformat(each["created_at"]),
            }
        )
    return found


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


def _cut(text: str, most: int) -> Cut:
    if len(text) <= most:
        return Cut(visible(text), more=False)
    # At the end of a line, if there is one near.
    kept = text[:most]
    line_end = kept.rfind("\n", most // 2)
    return Cut(visible(kept if line_end < 0 else kept[:line_end]), more=True)


_TEMPLATES = Path(__file__).parent / "templates"
STYLE = (_TEMPLATES / "shared" / "page.css").read_text("utf-8")
POLICY = (
    f"default-src 'none'; style-src 'sha256-"
    f"{base64.b64encode(sha256(STYLE.encode()).digest()).decode()}'; base-uri 'none'"
)
"""The Content-Security-Policy of these pages, but for forms and frames."""


def in_words(time: datetime) -> str:
    """Write a time for people: `31 January 2026, 12:00:00 UTC`."""
    return f"{time.astimezone(UTC):%-d %B %Y, %H:%M:%S} UTC"


def environment(*folders: Path) -> Environment:
    """Return an environment for these templates and those in more folders."""
    made = Environment(
        loader=FileSystemLoader([_TEMPLATES, *folders]), autoescape=True, undefined=StrictUndefined
    )
    made.filters |= {"in_words": in_words, "visible": visible}
    made.globals |= {"style": STYLE, "policy": None}
    return made
