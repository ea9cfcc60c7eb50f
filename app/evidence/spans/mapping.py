"""Spans of a run as a record: who acted for whom, in which conversation, and its steps.

Names are those of OpenTelemetry's conventions for generative AI, OpenInference, Langfuse and MCP.
The first that is there counts; every attribute stays on its step.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple

from app.evidence import gen_ai, times
from app.evidence.spans.runs import Run, Staged
from app.evidence.spans.span import LAST_NANOSECOND, Span, clean, number
from app.lib.canonical_json import JSON

CONVERSATION = (gen_ai.CONVERSATION, "session.id", "langfuse.session.id", "mcp.session.id")
AGENT_ID = "gen_ai.agent.id"
AGENT_NAMES = ("gen_ai.agent.name", "agent.name")
PRINCIPAL = ("enduser.id", "user.id")
PRINCIPAL_OF_RESOURCE = "service.principal"
UNKNOWN = "unknown"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MIME_TYPES = {"input.value": "input.mime_type", "output.value": "output.mime_type"}

GUARDRAIL = "apply_guardrail"
_OF_OPENINFERENCE = {
    "AGENT": "invoke_agent",
    "TOOL": "execute_tool",
    "LLM": "chat",
    "RETRIEVER": "retrieval",
    "GUARDRAIL": GUARDRAIL,
    "EMBEDDING": "embeddings",
}
# Attributes that only agents, models and tools have, whoever instrumented them.
_OF_AGENTS = ("gen_ai.", "openinference.", "llm.", "mcp.method.", "traceloop.")

# Far below the 128 levels of a bundle: there it stands in a step's values.
_MOST_LEVELS = 100
_MOST = {
    "external_id": 200,
    "name": 200,
    "version": 200,
    "kind": 200,
    "title": 500,
    "principal": 200,
}


class Agent(NamedTuple):
    """An agent as its spans name it."""

    external_id: str
    name: str
    version: str | None


class Mapped(NamedTuple):
    """A record to be: JSON-ready, but for `occurred_at`. Steps are of `records/bundle/v2`."""

    conversation: str
    agent: Agent
    principal: str
    trace_id: str
    kind: str
    title: str
    occurred_at: datetime
    labels: dict[str, str]
    content: dict[str, JSON]
    steps: list[dict[str, Any]]


def is_of_agents(spans: Iterable[Span]) -> bool:
    """Say whether a span is of an agent, a tool or a model."""
    return any(name.startswith(_OF_AGENTS) for each in spans for name in each.attributes)


def record_of(run: Run) -> Mapped:
    """Map a run to a record; its first span stands for the whole."""
    root, resource = run.spans[0].span, run.spans[0].resource
    attributes = [each.span.attributes for each in run.spans]
    labels = {"trace_id": root.trace_id}
    if run.incomplete:
        labels["incomplete"] = "true"
    return Mapped(
        conversation=external_id(_first(attributes, CONVERSATION) or root.trace_id),
        agent=_agent(attributes, resource),
        principal=_fit(
            _first(attributes, PRINCIPAL)
            or _first([resource], (PRINCIPAL_OF_RESOURCE,))
            or UNKNOWN,
            "principal",
        ),
        trace_id=root.trace_id,
        kind=kind_of(root),
        title=_fit(root.name, "title") or kind_of(root),
        # A float of seconds would lose microseconds.
        occurred_at=_EPOCH + timedelta(microseconds=(root.started or root.ended) // 1000),
        labels=labels,
        content={"resource": resource},
        steps=[_step(each) for each in run.spans],
    )


def kind_of(span: Span) -> str:
    """Return a span's operation, in the terms of the conventions for generative AI."""
    of = span.attributes
    if operation := said(of, "gen_ai.operation.name"):
        return _fit(operation, "kind")
    if of.get("mcp.method.name") == "tools/call":
        return "execute_tool"
    return _OF_OPENINFERENCE.get(said(of, "openinference.span.kind").upper(), "trace")


def said(attributes: Mapping[str, JSON], name: str) -> str:
    """Return an attribute's text, that of a number too; empty where it says nothing."""
    value = attributes.get(name)
    if isinstance(value, str):
        return value.strip()
    return "" if value is None or isinstance(value, bool | list | dict) else str(value)


def external_id(text: str) -> str:
    """Return a name as an external id: one that is too long is cut, and ends in its digest."""
    most = _MOST["external_id"]
    if len(text) > most:
        digest = sha256(text.encode()).hexdigest()[:16]
        text = f"{text[: most - 17]}~{digest}"
    return _fit(text, "external_id")


def _first(found: Iterable[Mapping[str, JSON]], names: Sequence[str]) -> str:
    """Return what the first of these says under the first of the names; the root comes first."""
    return next((text for of in found for name in names if (text := said(of, name))), "")


def _agent(found: Sequence[Mapping[str, JSON]], resource: Mapping[str, JSON]) -> Agent:
    for of in found:
        identifier, name = said(of, AGENT_ID), _first([of], AGENT_NAMES)
        if identifier or name:
            version = _fit(said(of, "gen_ai.agent.version"), "version") or None
            return Agent(external_id(identifier or name), _fit(name or identifier, "name"), version)
    name = said(resource, "service.name") or UNKNOWN
    return Agent(external_id(name), _fit(name, "name"), None)


def _fit(text: str, what: str) -> str:
    return text.replace("\0", "\ufffd")[: _MOST[what]]


def _step(staged: Staged) -> dict[str, Any]:
    span = staged.span
    attributes = dict(span.attributes)
    if span.message:
        attributes.setdefault("otel.status_description", span.message)
    started = span.started or span.ended
    step: dict[str, Any] = {
        "name": span.name,
        "kind": kind_of(span),
        "span_id": span.span_id,
        "started_at": times.text(started),
        "status": span.status,
        "attributes": attributes,
        "events": [
            {"name": each.name, "at": times.text(at), "attributes": each.attributes}
            for each in span.events
            # JSON can tell a time that no clock has.
            for at in (each.at if 0 < each.at < LAST_NANOSECOND else started,)
        ],
    }
    if span.parent_id:
        step["parent_span_id"] = span.parent_id
    if span.ended:
        # Clocks are set back: nothing ends before it began.
        step["ended_at"] = times.text(max(started, span.ended))
    for side, names in (("inputs", gen_ai.INPUTS), ("outputs", gen_ai.OUTPUTS)):
        found = next((name for name in names if span.attributes.get(name) is not None), None)
        if found is not None:
            value = span.attributes[found]
            is_plain = span.attributes.get(_MIME_TYPES.get(found, "")) == "text/plain"
            if isinstance(value, str) and not is_plain:
                value = parsed(value)
            step[side] = value if isinstance(value, dict) else {"value": value}
    links = [each for each in span.links if len(each.trace_id) == 32 and len(each.span_id) == 16]
    if links:
        step["links"] = [
            {"trace_id": each.trace_id, "span_id": each.span_id, "attributes": each.attributes}
            for each in links
        ]
    return step


def parsed(text: str) -> JSON:
    """Return the value of JSON text, as canonical JSON can hold it; other text as it is."""
    try:
        value: JSON = json.loads(
            text,
            parse_int=lambda digits: number(int(digits)) if len(digits) < 20 else digits,
            parse_float=lambda digits: number(float(digits)),
            parse_constant=str,
        )
        if text.count("[") + text.count("{") > _MOST_LEVELS and _is_deep(value):
            return text
    except (ValueError, RecursionError):
        return text
    # Only an escape brings half of a surrogate pair into text that has none.
    cleaned: JSON = _cleaned(value) if "\\u" in text else value
    return cleaned


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {clean(name): _cleaned(each) for name, each in value.items()}
    return value
