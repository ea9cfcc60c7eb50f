"""One span of OTLP, as values that canonical JSON can hold.

Nothing odd in a value is refused: half surrogates, NaN and integers that a double rounds become
text. `protobuf` and `otlp_json` read spans; `checked` says which can never be taken.
"""

import math
import re
from typing import NamedTuple

from app.lib.canonical_json import JSON, MAX_INTEGER

MOST_PARTS = 10_000
"""The most attributes, events and links of a span; SDKs keep 128 of each unless told."""

LAST_NANOSECOND = 4_102_444_800 * 1_000_000_000
"""The end of the year 2099: no span happened later."""

MAX_LEVELS = 64
"""How deep values nest before the rest is left out, as its words say."""

TOO_DEEP = f"(nested deeper than {MAX_LEVELS} levels)"

_HALF = re.compile("[\ud800-\udfff]")
_STATUSES = ("unset", "ok", "error")
_REMOTE = 0x300
# Beyond, canonical JSON writes a double as an integer that a double rounds.
_SMALLEST_WITH_EXPONENT = 1e21


class NeverTaken(ValueError):
    """A span that can never be taken; the text says why, for its exporter's people."""


class Event(NamedTuple):
    """An event of a span; `at` in nanoseconds since 1970."""

    name: str
    at: int
    attributes: dict[str, JSON]


class Link(NamedTuple):
    """A span that another names, mostly of another trace; ids in hex."""

    trace_id: str
    span_id: str
    attributes: dict[str, JSON]


class Span(NamedTuple):
    """A span. Ids are hex, `parent_id` empty without one; times in nanoseconds, 0 for none."""

    trace_id: str
    span_id: str
    parent_id: str
    remote_parent: bool
    name: str
    kind: int
    started: int
    ended: int
    status: str
    message: str
    attributes: dict[str, JSON]
    events: list[Event]
    links: list[Link]

    @property
    def is_local_root(self) -> bool:
        """Whether its parent is in another process, or nowhere."""
        return not self.parent_id or self.remote_parent


def checked(span: Span) -> Span:
    """Return the span; raises `NeverTaken` for ids and times that no span has."""
    for name, length, found in (("trace", 32, span.trace_id), ("span", 16, span.span_id)):
        if len(found) != length:
            raise NeverTaken(f"the {name} id has {len(found) / 2:g} bytes and not {length // 2}")
        if not found.strip("0"):
            raise NeverTaken(f"the {name} id is all zeros")
    if span.parent_id and len(span.parent_id) != 16:
        raise NeverTaken(f"the parent's id has {len(span.parent_id) / 2:g} bytes and not 8")
    if not (span.started or span.ended):
        raise NeverTaken("the span has no start and no end")
    for what, moment in (("start", span.started), ("end", span.ended)):
        if moment < 0:
            raise NeverTaken(f"the span's {what} is before 1970")
        if moment >= LAST_NANOSECOND:
            raise NeverTaken(f"the span's {what} is after 2099")
    return span


def clean(text: str) -> str:
    """Return text with U+FFFD for each half of a surrogate pair, which UTF-8 cannot hold."""
    return text if text.isascii() else _HALF.sub("\ufffd", text)


def number(value: float) -> JSON:
    """Return a number as canonical JSON can hold it, else its text."""
    if isinstance(value, int):
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return value
        # Python refuses to write integers of more than 4,300 digits.
        return str(value) if value.bit_length() < 10_000 else hex(value)
    size = abs(value)
    if math.isfinite(value) and (size <= MAX_INTEGER or size >= _SMALLEST_WITH_EXPONENT):
        return value
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, repr(value).replace("n", "N"))


def bounded(parts: int) -> None:
    """Raise `NeverTaken` for a span of too many attributes, events and links together."""
    if parts > MOST_PARTS:
        raise NeverTaken(f"the span has more than {MOST_PARTS} attributes, events and links")


def status_name(code: int) -> str:
    """Return the status that OTLP numbers so; a number that it does not know is unset."""
    return _STATUSES[code] if 0 <= code < len(_STATUSES) else "unset"


def is_remote(flags: int) -> bool:
    """Say whether a span's flags tell that its parent is in another process."""
    return flags & _REMOTE == _REMOTE
