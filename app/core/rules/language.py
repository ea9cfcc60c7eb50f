"""The language of rules: what an expression sees, templates, and what an evaluator is told.

Shared by the evaluators' processes and those who start them; these load no CEL.
"""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

MOST_MATCHES = 20
"""Matching steps of a record that are described; the rest are counted."""

# Where an evaluator is: the places of a subject and of a rule, -1 for none.
_MARK = struct.Struct("<ii")

_AGENT = ("id", "external_id", "name", "version")
_SESSION = ("id", "external_id")
_RECORD = (
    *("id", "kind", "title", "labels", "occurred_at", "created_at", "principal", "agent"),
    "session",
)
_STEP = (
    *("name", "kind", "started_at", "ended_at", "status", "attributes", "inputs", "outputs"),
    *("events", "span_id", "parent_span_id", "links"),
)
_WHOLE_SESSION = (
    *("id", "external_id", "title", "metadata", "principal", "agent", "status", "outcome"),
    *("summary", "created_at", "completed_at", "records", "findings", "duration"),
)
FIELDS: Mapping[str, Sequence[str]] = {
    "record": _RECORD,
    "record.agent": _AGENT,
    "record.session": _SESSION,
    "step": _STEP,
    "session": _WHOLE_SESSION,
    "session.agent": _AGENT,
}
"""The fields of what a rule sees, by its name."""

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "record": ("record", "content", "steps"),
    "step": ("record", "step"),
    "session": ("session",),
}
"""The variables of a rule, by what it is on."""


class Erred(Exception):
    """An expression has no value here; the text says why."""


class RuleText(NamedTuple):
    """What is evaluated of a rule's version."""

    on: str
    when: str
    title: str
    detail: str | None
    dedupe: str | None


class Match(NamedTuple):
    """A match: the step's index if the rule is on steps, and the texts of its finding.

    `dedupe` is the SHA-256 of that text, in hexadecimal.
    """

    step: int | None
    title: str
    detail: str | None
    dedupe: str | None
    what: dict[str, str]


def pieces(template: str) -> Iterator[tuple[str, int | None]]:
    """Yield a template's texts (with None) and its expressions, each with where it begins.

    Raises `Erred` for a `{{` without its `}}`.
    """
    at = 0
    while (opened := template.find("{{", at)) >= 0:
        closed = template.find("}}", opened)
        if closed < 0:
            raise Erred(str(opened))
        yield template[at:opened], None
        yield template[opened + 2 : closed], opened + 2
        at = closed + 2
    yield template[at:], None


def mark(marker: int, subject: int, rule: int) -> None:
    """Write into an evaluator's file at which subject and rule it is, by their places; -1: none."""
    os.pwrite(marker, _MARK.pack(subject, rule), 0)


def marked(marker: int) -> tuple[int, int]:
    """Return what was marked last."""
    subject, rule = _MARK.unpack(os.pread(marker, _MARK.size, 0))
    return subject, rule
