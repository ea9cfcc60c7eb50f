"""What guardrails and evaluations said of a run, as findings, and what people decided.

A failed `gen_ai.evaluation.result` (an event), and a guardrail's refusal. Guardrails say it by
attributes of many makers, and most say nothing when they let pass: no sign, no finding. For
approvals no convention has names yet: Claude Code notes who was asked and what was answered; other
programs set three attributes of this service's own.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from app.evidence.bundle import Approval
from app.evidence.spans.mapping import GUARDRAIL, said
from app.lib import canonical_json
from app.lib.canonical_json import JSON

_FAILED = frozenset({"fail", "failed", "unsafe"})
_REFUSED = frozenset({"deny", "block"})
_SEVERITIES = ("critical", "high", "medium", "low", "info")
_ALSO_CALLED = {"none": "info", "warning": "medium", "error": "high"}
_NAMES = ("gen_ai.guardian.name", "gen_ai.guardrail.name", "guardrail.name")
_REASONS = ("gen_ai.security.decision.reason", "guardrail.reason", "guardrail.message")
# A finding's event has 256 KiB in all.
_MOST_DATA = 64 * 1024

MOST = 20
"""The most findings of a record, beside one that counts the rest."""


class Verdict(NamedTuple):
    """A finding to be."""

    rule: str
    severity: str
    title: str
    detail: str | None
    data: dict[str, JSON]


def of_steps(steps: Iterable[Mapping[str, Any]]) -> Iterator[Verdict]:
    """Yield what guardrails and evaluations of a record found wrong, step by step.

    The first `MOST`, then one for the rest: how many, and as severe as the worst of them.
    """
    found = _each(steps)
    yield from islice(found, MOST)
    rest = [each.severity for each in found]
    if rest:
        title = f"{len(rest):,} more guardrails and evaluations of this record failed"
        worst = min(rest, key=_SEVERITIES.index)
        yield Verdict("otlp.more", worst, title, None, {"more": len(rest)})


def _each(steps: Iterable[Mapping[str, Any]]) -> Iterator[Verdict]:
    for step in steps:
        for event in step["events"]:
            if event["name"] == "gen_ai.evaluation.result":
                yield from _evaluation(step, event["attributes"])
        if step["kind"] == GUARDRAIL and _refused(step):
            yield _refusal(step)


def _evaluation(step: Mapping[str, Any], of: Mapping[str, JSON]) -> Iterator[Verdict]:
    label = said(of, "gen_ai.evaluation.score.label")
    if label.lower() in _FAILED:
        name = said(of, "gen_ai.evaluation.name") or "unnamed"
        detail = said(of, "gen_ai.evaluation.explanation")
        yield _verdict(f"evaluation.{name}", "medium", f"{name}: {label}", detail, step, of)


def _refused(step: Mapping[str, Any]) -> bool:
    of: Mapping[str, JSON] = step["attributes"]
    return (
        said(of, "gen_ai.security.decision.type").lower() in _REFUSED
        or any(name.endswith("guardrail.status") and said(of, name) == "FAILED" for name in of)
        or any(name.endswith("triggered") and value is True for name, value in of.items())
        or _is_triggered(step.get("outputs"))
    )


def _is_triggered(value: JSON) -> bool:
    if isinstance(value, dict):
        return value.get("tripwire_triggered") is True or any(map(_is_triggered, value.values()))
    return isinstance(value, list) and any(map(_is_triggered, value))


def _refusal(step: Mapping[str, Any]) -> Verdict:
    of: Mapping[str, JSON] = step["attributes"]
    name = next((text for each in _NAMES if (text := said(of, each))), "") or step["name"]
    words = [said(of, each).lower() for each in of if each.endswith("severity")]
    told = [_ALSO_CALLED.get(word, word) for word in words]
    severity = next((each for each in _SEVERITIES if each in told), "high")
    detail = next((text for each in _REASONS if (text := said(of, each))), "")
    name = name or "unnamed"
    return _verdict(f"guardrail.{name}", severity, f"Refused by {name}", detail, step, of)


def _verdict(
    rule: str,
    severity: str,
    title: str,
    detail: str,
    step: Mapping[str, Any],
    of: Mapping[str, JSON],
) -> Verdict:
    data: dict[str, JSON] = {"span_id": step["span_id"], "attributes": dict(of)}
    if len(canonical_json.dumps(data)) > _MOST_DATA:
        del data["attributes"]
    rule, title, detail = (text.replace("\0", "\ufffd") for text in (rule, title, detail))
    return Verdict(rule[:200], severity, title[:500], detail[:10_000] or None, data)


DECISION, BY, NOTE = "approval.decision", "approval.by", "approval.note"
_PEOPLE = (BY, "enduser.id", "user.email", "user.id")
# Claude Code: a rule or a hook may have decided as well, and then `source` says so.
_ASKED, _BY_A_PERSON = "claude_code.tool.blocked_on_user", "user_"
_MOST_APPROVALS, _MOST_TEXT, _MOST_NOTE = 100, 200, 2_000


def approvals(steps: Iterable[Mapping[str, Any]], principal: str) -> list[Approval]:
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
    return found[:_MOST_APPROVALS]


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
