"""Agents of other frameworks against a whole service: each program of docs/agents.md as written."""

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from dev.stack import ROOT
from tests.e2e.harness.stack import PLAIN, Caller, RunningStack
from tests.support.faults import until
from tests.support.programs import frameworks
from tests.support.programs.documents import block, blocks, with_stand_in

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]

PAGE = "docs/agents.md"
# Of each: words of its program, its agent, its conversation, and for whom.
PROGRAMS = {
    "pydantic_ai": ("pydantic_ai", "refund-desk", None, "unknown"),
    "openai_agents": ("from agents", "refund-desk", "chat-4711", "dana@example.com"),
    "langgraph": ("LangChainInstrumentor", "refunds", "chat-4711", "dana@example.com"),
    "plain": ("get_tracer", "refund-desk", "chat-4711", "dana@example.com"),
}


def run(program: str, stack: RunningStack, caller: Caller) -> str:
    """Run a program with the page's variables and no others; return what it prints."""
    variables = blocks((ROOT / PAGE).read_text("utf-8"), "sh")[0]
    assert variables.count("export") == 2
    done = subprocess.run(
        ["sh", "-euc", f'{variables}exec "$0" -c "$1"', str(frameworks.python()), program],
        env={
            **PLAIN,
            "BASE_URL": stack.base_url,
            "SERVICE_API_KEY": caller.key,
            "OTEL_SERVICE_NAME": "refunds",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # An exporter that is refused says so here, and drops what it has.
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_leaves_a_record_by_two_variables(stack: RunningStack, name: str) -> None:
    words, agent, conversation, principal = PROGRAMS[name]
    caller = stack.fresh_tenant()
    program = block(PAGE, "python", words)
    run(program if name == "plain" else with_stand_in(program, name), stack, caller)
    until(lambda: caller.get("/v1/records")["data"])
    (record,) = caller.get("/v1/records")["data"]
    assert record["principal"] == principal
    assert caller.get(f"/v1/agents/{record['agent_id']}")["name"] == agent
    session = caller.get(f"/v1/sessions/{record['session_id']}")
    assert session["external_id"] == conversation or conversation is None
    (trace,) = caller.get("/v1/traces")["data"]
    assert (trace["status"], trace["service"]) == ("assembled", "refunds")
    bundle = json.loads(caller.ask("GET", f"/v1/records/{record['id']}/bundle").content)
    steps: list[dict[str, Any]] = bundle["steps"]
    assert len(steps) == trace["spans"]
    known = {step["span_id"] for step in steps}
    assert sum(step.get("parent_span_id") not in known for step in steps) == 1
    (done,) = (each for each in steps if each["kind"] == "execute_tool")
    assert "refund" in done["name"]
    assert done["inputs"]
    assert done["outputs"]


def test_a_person_s_decision_is_signed_with_the_record(stack: RunningStack) -> None:
    caller = stack.fresh_tenant()
    decided = block(PAGE, "python", "approval.decision").replace("\n", "\n        ")
    asked = '"execute_tool refund", attributes=tool) as span:\n'
    program = block(PAGE, "python", "get_tracer")
    assert asked in program
    run(program.replace(asked, f"{asked}        {decided.rstrip()}\n"), stack, caller)
    until(lambda: caller.get("/v1/records")["data"])
    (record,) = caller.get("/v1/records")["data"]
    bundle = json.loads(caller.ask("GET", f"/v1/records/{record['id']}/bundle").content)
    (approval,) = bundle["approvals"]
    assert (approval["decision"], approval["approved_by"]) == ("approved", "erin@example.com")


def test_every_program_is_run_and_every_package_named_is_pinned() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    programs = blocks(page, "python")
    # That of an approval runs within another.
    assert len(programs) == len(PROGRAMS) + 1
    installed = " ".join(re.findall(r"`pip install ([^`]+)`", page)).split()
    assert len(installed) >= len(PROGRAMS)
    assert set(installed) <= frameworks.pinned()


def test_the_collector_s_parts_are_defined_and_used() -> None:
    """Its program is in no registry that the tests know, so this holds only its form."""
    settings = yaml.safe_load(block(PAGE, "yaml", "receivers:"))
    pipeline = settings["service"]["pipelines"]["traces"]
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(settings[kind])
    assert settings["service"]["extensions"] == list(settings["extensions"])
    exporter = settings["exporters"]["otlp_http"]
    assert exporter["endpoint"] == "${env:BASE_URL}"
    assert exporter["sending_queue"]["storage"] in settings["extensions"]
    for pattern in settings["processors"]["redaction"]["blocked_values"]:
        assert re.search(pattern, "dana@example.com or DE89 3704 0044 0532 0130 00")
