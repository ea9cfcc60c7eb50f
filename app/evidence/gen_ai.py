"""OpenTelemetry's semantic conventions for generative AI, applied to steps.

A step's kind, or its attribute `gen_ai.operation.name`, names the operation; its span gets the
name, kind and attributes of the conventions. A step's own attributes are never replaced.
https://github.com/open-telemetry/semantic-conventions-genai, v0.1.0
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from app.evidence import bundle
from app.evidence.bundle import Bundle, Record, Step
from app.lib.canonical_json import JSON

SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai/0.1.0"
"""The conventions, as OTLP names them."""

INTERNAL = 1
CLIENT = 3
"""SpanKind, as OTLP numbers it."""

EXECUTE_TOOL = "execute_tool"
INVOKE_AGENT = "invoke_agent"

_LOCAL = frozenset({EXECUTE_TOOL, INVOKE_AGENT, "invoke_workflow", "plan"})
_OF_MODELS = frozenset(
    {"chat", "create_agent", "embeddings", "generate_content", "retrieval", "text_completion"}
)
_OF_MEMORIES = frozenset(
    {
        "create_memory",
        "create_memory_store",
        "delete_memory",
        "delete_memory_store",
        "search_memory",
        "update_memory",
        "upsert_memory",
    }
)
OPERATIONS = _LOCAL | _OF_MODELS | _OF_MEMORIES
"""The well-known values of `gen_ai.operation.name`."""

_ALSO_CALLED = {"agent": INVOKE_AGENT, "tool": EXECUTE_TOOL, "tool_call": EXECUTE_TOOL}

_TARGETS = {
    EXECUTE_TOOL: "gen_ai.tool.name",
    INVOKE_AGENT: "gen_ai.agent.name",
    "create_agent": "gen_ai.agent.name",
    "invoke_workflow": "gen_ai.agent.name",
    "plan": "gen_ai.agent.name",
}

CONVERSATION = "gen_ai.conversation.id"

INPUTS = ("gen_ai.tool.call.arguments", "tool_arguments", "input.value", "gen_ai.input.messages")
OUTPUTS = ("gen_ai.tool.call.result", "tool_response", "output.value", "gen_ai.output.messages")
"""Attributes of spans that hold inputs or outputs, of several conventions; the first counts."""

SIDES: tuple[tuple[Literal["inputs", "outputs"], str], ...] = (
    ("inputs", "gen_ai.tool.call.arguments"),
    ("outputs", "gen_ai.tool.call.result"),
)
"""A tool call's arguments and result, and their attributes."""


def operation(step: Step) -> str | None:
    """Return the step's operation: a word of OPERATIONS, or None when it is something else."""
    told = step["attributes"].get("gen_ai.operation.name", step["kind"])
    name = _ALSO_CALLED.get(told, told) if isinstance(told, str) else None
    return name if name in OPERATIONS else None


def span_name(step: Step) -> str:
    """Return `{operation} {target}`, the target being the tool, agent or model, if told which.

    Of another kind of step, and in place of a target that is not told, its own name; a step that
    was a span has its name.
    """
    what = operation(step)
    if what is None or "span_id" in step:
        return step["name"]
    target = step["attributes"].get(_TARGETS.get(what, "gen_ai.request.model"))
    return f"{what} {target if isinstance(target, str) else step['name']}"


def span_kind(step: Step) -> int:
    """Return CLIENT for what calls a model or a store of memories, INTERNAL for the rest."""
    what = operation(step)
    return INTERNAL if what is None or what in _LOCAL else CLIENT


def conversation(read: Bundle) -> str:
    """Return the id of the conversation that a record belongs to, one for all of its spans.

    It is what the first span says that says any, else the session's id, the external one if there
    is one. Of version 1 it is the session's id.
    """
    session = read["record"]["session"]
    if read["schema"] == bundle.V1:
        return session["id"]
    told = (step["attributes"].get(CONVERSATION) for step in read["steps"])
    own = next((each for each in told if isinstance(each, str) and each), None)
    return own or session.get("external_id", session["id"])


def of_record(record: Record, conversation_id: str) -> dict[str, JSON]:
    """Return the attributes of the record's own span: an agent at work for its principal."""
    agent = record["agent"]
    version: dict[str, JSON] = {}
    if "version" in agent:
        version["gen_ai.agent.version"] = agent["version"]
    return {
        "gen_ai.operation.name": INVOKE_AGENT,
        "gen_ai.agent.id": agent.get("external_id", agent["id"]),
        "gen_ai.agent.name": agent["name"],
        **version,
        CONVERSATION: conversation_id,
        "enduser.id": record["principal"],
    }


def of_step(step: Step, conversation_id: str) -> Mapping[str, JSON]:
    """Return the attributes that the conventions have for a step, but for what it says itself.

    A step that was a span has its own, and gets the conversation's id alone.
    """
    if "span_id" in step:
        return {CONVERSATION: conversation_id}
    named: dict[str, JSON] = {}
    if step["status"] == "error":
        named["error.type"] = "_OTHER"
    what = operation(step)
    if what is not None:
        named["gen_ai.operation.name"] = what
        named[CONVERSATION] = conversation_id
    if what == EXECUTE_TOOL:
        named["gen_ai.tool.name"] = step["name"]
        for side, name in SIDES:
            values = step.get(side)
            if isinstance(values, dict):
                named[name] = values
    return named


# What answered, what was asked for (OpenTelemetry), and OpenInference's name for either.
_MODELS = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
MOST_MODELS = 100


def models(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of models in the attributes of steps, sorted, the first hundred."""
    told = (step["attributes"].get(name) for step in steps for name in _MODELS)
    return sorted({name for name in told if isinstance(name, str) and name})[:MOST_MODELS]
