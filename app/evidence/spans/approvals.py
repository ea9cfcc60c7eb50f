"""Approvals: what people decided during a run, from its spans.

No convention has names for them yet. Claude Code notes who was asked and what was answered; other
frameworks note the question at most, so programs set three attributes of this service's own.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.evidence.bundle import Approval
from app.evidence.spans.mapping import said
from app.lib.canonical_json import JSON

DECISION, BY, NOTE = "approval.decision", "approval.by", "approval.note"
_PEOPLE = (BY, "enduser.id", "user.email", "user.id")
# Claude Code: a rule or a hook may have decided as well, and then `source` says so.
_ASKED, _BY_A_PERSON = "claude_code.tool.blocked_on_user", "user_"
_MOST, _MOST_TEXT, _MOST_NOTE = 100, 200, 2_000


def of_steps(steps: Iterable[Mapping[str, Any]], principal: str) -> list[Approval]:
    """Return what people decided; whoever is not named is the `principal`.

    `steps` are those of a bundle. Of more than 100 decisions the first are returned: each stays in
    its step's attributes.
    """
    steps = list(steps)
    names = {step["span_id"]: step["name"] for step in steps}
    tools = {step["span_id"]: said(step["attributes"], "tool_name") for step in steps}
    found: list[Approval] = []
    for step in steps:
        of: Mapping[str, JSON] = step["attributes"]
        source = said(of, "source")
        if step["name"] == _ASKED and source.startswith(_BY_A_PERSON):
            tool = tools.get(step.get("parent_span_id", ""), "")
            at = step.get("ended_at", step["started_at"])
            found += _approval(said(of, "decision"), at, f"{tool} {source}", (of,), principal)
        for at, told in _told(step):
            note = said(told, NOTE) or names.get(step["span_id"], "")
            found += _approval(said(told, DECISION), at, note, (told, of), principal)
    return found[:_MOST]


def _told(step: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """Yield the moments and attributes of a step, and of its events, that may have a decision."""
    yield step.get("ended_at", step["started_at"]), step["attributes"]
    for event in step["events"]:
        yield event["at"], event["attributes"]


def _approval(
    decision: str,
    at: str,
    note: str,
    places: tuple[Mapping[str, JSON], ...],
    principal: str,
) -> Iterator[Approval]:
    """Yield the approval that a decision is; nothing where none was made."""
    if not decision:
        return
    people = (said(of, name) for of in places for name in _PEOPLE)
    approved_by = next(filter(None, people), principal)
    made = Approval(approved_by=_fit(approved_by, _MOST_TEXT), at=at, decision=_fit(decision, 100))
    if note.strip():
        made["note"] = _fit(note.strip(), _MOST_NOTE)
    yield made


def _fit(text: str, most: int) -> str:
    return text.replace("\0", "\ufffd")[:most]
