"""Spans become runs, records and findings, by the names that many makers give."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.evidence import times
from app.evidence.bundle import Step
from app.evidence.spans import mapping, protobuf, runs, verdicts
from app.evidence.spans.runs import Before, Run, Staged
from app.lib import canonical_json
from tests.support.spans import AGENT, TOOL
from tests.support.spans import span as make_span

NOTHING = Before()


def staged(number: int, parent: int | None = None, *, by: str = "desk", **members: Any) -> Staged:
    made = make_span(number, parent, **members)
    resource: dict[str, Any] = {"service.name": by}
    read = protobuf.read_span(made.SerializeToString())
    return Staged(read, resource, by.encode(), members.pop("size", 100))


def numbers(found: list[Run]) -> list[list[int]]:
    return [[int(each.span.span_id, 16) for each in run.spans] for run in found]


def mapped(attributes: dict[str, Any], *below: dict[str, Any], **members: Any) -> mapping.Mapped:
    spans = [staged(1, attributes=attributes, **members)]
    spans += [staged(2 + at, 1, attributes=of, start=at) for at, of in enumerate(below)]
    (run,) = runs.assemble(spans, NOTHING, patient=False)
    return mapping.record_of(run)


def test_steps_have_the_members_that_a_bundle_s_have() -> None:
    odd = {"input.value": "[1]", "output.value": 7, "gen_ai.tool.name": "t"}
    for seconds in (1, None):
        (step,) = mapping.record_of(Run([staged(1, 9, attributes=odd, seconds=seconds)])).steps
        required, optional = Step.__required_keys__, Step.__optional_keys__
        assert required <= step.keys() <= required | optional
        assert times.unix_nanoseconds(step["started_at"]) > 0
        assert ("ended_at" in step) == (seconds is not None)


def test_a_run_is_its_root_and_all_below_by_start() -> None:
    spans = [staged(3, 2, start=5), staged(2, 1, start=7), staged(1, start=9)]
    assert numbers(runs.assemble(spans, NOTHING, patient=False)) == [[1, 3, 2]]


def test_a_run_waits_for_its_root() -> None:
    waiting = [staged(2, 1), staged(1, seconds=None)]
    assert runs.assemble(waiting, NOTHING, patient=False) == []
    (incomplete,) = runs.assemble(waiting, NOTHING, patient=True)
    assert (incomplete.incomplete, incomplete.supplement) == (True, False)
    assert numbers([incomplete]) == [[2, 1]] or numbers([incomplete]) == [[1, 2]]


def test_a_span_belongs_to_the_nearest_root_above_it() -> None:
    spans = [
        *(staged(1), staged(2, 1)),
        *(staged(10, 2, by="billing", flags=0x301), staged(11, 10, by="billing")),
    ]
    assert numbers(runs.assemble(spans, NOTHING, patient=False)) == [[1, 2], [10, 11]]
    # The outer root is not here yet: its other spans wait for it.
    found = runs.assemble([staged(3, 1), *spans[2:]], NOTHING, patient=False)
    assert numbers(found) == [[10, 11]]


def test_spans_whose_parent_is_lost_go_with_the_root_of_their_process() -> None:
    spans = [staged(1), staged(3, 99), staged(4, 98, by="another")]
    assert numbers(runs.assemble(spans, NOTHING, patient=False)) == [[1, 3]]
    assert numbers(runs.assemble(spans, NOTHING, patient=True)) == [[1, 3, 4]]


def test_parents_in_a_circle_end() -> None:
    spans = [staged(2, 3), staged(3, 2), staged(4, 4)]
    assert runs.assemble(spans, NOTHING, patient=False) == []
    assert numbers(runs.assemble(spans, NOTHING, patient=True)) == [[2, 3, 4]]


def test_spans_that_lie_deep_under_each_other_take_no_longer_than_others() -> None:
    deep = [staged(number, number - 1 or None) for number in range(5_000, 0, -1)]
    began = time.process_time()
    (found,) = runs.assemble(deep, NOTHING, patient=False)
    assert len(found.spans) == 5_000
    # Each on its own way up would take 12 million steps.
    assert time.process_time() - began < 1


def test_what_follows_a_record_supplements_it() -> None:
    before = Before(frozenset({f"{1:016x}"}), recorded=True)
    (found,) = runs.assemble([staged(2, 1)], before, patient=False)
    assert (found.supplement, found.incomplete) == (True, False)
    # Its parent is not known: it waits first.
    assert runs.assemble([staged(3, 77)], before, patient=False) == []
    (found,) = runs.assemble([staged(3, 77)], before, patient=True)
    assert found.supplement
    # The root of an incomplete record supplements it too; another root is a record of its own.
    (found,) = runs.assemble([staged(1)], before._replace(incomplete=True), patient=False)
    assert found.supplement
    (found,) = runs.assemble([staged(9)], before, patient=False)
    assert not found.supplement


def test_what_one_record_cannot_hold_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MOST_BYTES", 250)
    spans = [staged(1), *(staged(number, 1, start=number) for number in range(2, 7))]
    found = runs.assemble(spans, NOTHING, patient=False)
    assert numbers(found) == [[1, 2], [3, 4], [5, 6]]
    assert [each.supplement for each in found] == [False, True, True]


@pytest.mark.parametrize(
    ("attributes", "below", "conversation"),
    [
        ({"gen_ai.conversation.id": "a", "session.id": "b"}, {}, "a"),
        ({"session.id": "b", "langfuse.session.id": "c"}, {}, "b"),
        ({"langfuse.session.id": "c", "mcp.session.id": "d"}, {}, "c"),
        ({"mcp.session.id": "d"}, {}, "d"),
        ({"session.id": 7}, {}, "7"),
        ({"session.id": " "}, {"session.id": "below"}, "below"),
        ({}, {}, f"{1:032x}"),
    ],
)
def test_a_conversation_has_many_names(
    attributes: dict[str, Any], below: dict[str, Any], conversation: str
) -> None:
    assert mapped(attributes, below).conversation == conversation


@pytest.mark.parametrize(
    ("attributes", "below", "agent"),
    [
        ({"gen_ai.agent.id": "a1", "gen_ai.agent.name": "desk"}, {}, ("a1", "desk", None)),
        ({"gen_ai.agent.id": "a1"}, {}, ("a1", "a1", None)),
        ({"gen_ai.agent.name": "n", "gen_ai.agent.version": "2"}, {}, ("n", "n", "2")),
        ({"agent.name": "openinference"}, {}, ("openinference", "openinference", None)),
        ({"user.id": "dana"}, {"gen_ai.agent.name": "below"}, ("below", "below", None)),
        ({}, {}, ("desk", "desk", None)),
    ],
)
def test_an_agent_is_the_first_that_is_named(
    attributes: dict[str, Any], below: dict[str, Any], agent: tuple[str, str, str | None]
) -> None:
    assert mapped(attributes, below).agent == agent


def test_the_principal_and_the_kind_have_their_names_too() -> None:
    assert mapped({"enduser.id": "a", "user.id": "b"}).principal == "a"
    assert mapped({}, {"user.id": "b"}).principal == "b"
    assert mapped({}).principal == "unknown"
    kinds = {
        "chat": {"gen_ai.operation.name": "chat", "openinference.span.kind": "TOOL"},
        "execute_tool": {"mcp.method.name": "tools/call"},
        "invoke_agent": {"openinference.span.kind": "AGENT"},
        "retrieval": {"openinference.span.kind": "RETRIEVER"},
        "apply_guardrail": {"openinference.span.kind": "GUARDRAIL"},
        "embeddings": {"openinference.span.kind": "EMBEDDING"},
        "trace": {"openinference.span.kind": "CHAIN"},
    }
    assert {mapped(of).kind: of for of in kinds.values()} == kinds


def test_inputs_and_outputs_are_objects() -> None:
    found = mapped(
        {"gen_ai.tool.call.arguments": '{"a": 1}', "gen_ai.tool.call.result": "not JSON"},
        {"input.value": "[1, 2]", "output.value": "7", "output.mime_type": "text/plain"},
        {"tool_arguments": {"b": 2}, "tool_response": '"text"'},
        {"gen_ai.input.messages": [{"role": "user"}]},
    )
    sides = [(step.get("inputs"), step.get("outputs")) for step in found.steps]
    assert sides == [
        ({"a": 1}, {"value": "not JSON"}),
        ({"value": [1, 2]}, {"value": "7"}),
        ({"b": 2}, {"value": "text"}),
        ({"value": [{"role": "user"}]}, None),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"n": 9007199254740993}', {"n": "9007199254740993"}),
        ('{"n": 1e400, "m": NaN}', {"n": "Infinity", "m": "NaN"}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
        ("[" * 150 + "]" * 150, "[" * 150 + "]" * 150),
        ("[" * 100_000, "[" * 100_000),
        ("1" * 5_000, "1" * 5_000),
        ("", ""),
    ],
)
def test_json_text_is_parsed_so_far_as_it_can_be_signed(text: str, value: Any) -> None:
    found = mapping.parsed(text)
    assert found == value
    assert canonical_json.parse(canonical_json.dumps({"steps": [{"inputs": {"v": found}}]}))


@given(st.text(max_size=40) | st.recursive(st.floats() | st.integers(), st.lists).map(json.dumps))
def test_any_text_can_be_signed(text: str) -> None:
    canonical_json.dumps(mapping.parsed(text))


def test_a_step_is_its_span() -> None:
    link = make_span(1).links.add(trace_id=b"\1" * 16, span_id=b"\2" * 8)
    found = mapped({**AGENT, "x": 1}, TOOL, name="run", links=[link])
    root, step = found.steps
    assert root["started_at"] == "2026-01-31T12:00:00.000000000Z"
    assert root["ended_at"] == "2026-01-31T12:00:01.000000000Z"
    assert root["links"] == [{"trace_id": "01" * 16, "span_id": "02" * 8, "attributes": {}}]
    assert "parent_span_id" not in root
    assert root["attributes"] == {**AGENT, "x": 1}
    assert (step["span_id"], step["parent_span_id"]) == (f"{2:016x}", f"{1:016x}")
    assert (found.title, found.labels) == ("run", {"trace_id": f"{1:032x}"})
    assert found.content == {"resource": {"service.name": "desk"}}


def test_a_step_that_never_ended_has_no_end() -> None:
    (run,) = runs.assemble([staged(1, seconds=None)], NOTHING, patient=True)
    found = mapping.record_of(run)
    assert "ended_at" not in found.steps[0]
    assert found.labels["incomplete"] == "true"


def test_long_names_are_cut_and_stay_apart() -> None:
    one, two = (mapped({"session.id": "x" * 600 + end}).conversation for end in "ab")
    assert one != two
    assert len(one) == len(two) <= 500
    assert len(mapped({"agent.name": "n" * 999}).agent.name) == 200


@pytest.mark.parametrize(
    ("attributes", "severity"),
    [
        ({"gen_ai.security.decision.type": "deny"}, "high"),
        ({"gen_ai.security.decision.type": "block", "risk.severity": "critical"}, "critical"),
        ({"gen_ai.security.decision.type": "allow"}, None),
        ({"gen_ai.guardrail.status": "FAILED"}, "high"),
        ({"gen_ai.guardrail.status": "PASSED"}, None),
        ({"guardrail.triggered": True, "guardrail.severity": "warning"}, "medium"),
        ({"guardrail.triggered": False}, None),
        ({"output.value": '{"output": {"tripwire_triggered": true}}'}, "high"),
        ({"output.value": '{"tripwire_triggered": false}'}, None),
        ({}, None),
    ],
)
def test_a_guardrail_that_refused_is_a_finding(
    attributes: dict[str, Any], severity: str | None
) -> None:
    of = {"openinference.span.kind": "GUARDRAIL", "guardrail.name": "pii", **attributes}
    found = list(verdicts.of_steps(mapped({}, of).steps))
    assert [(each.rule, each.severity) for each in found] == (
        [("guardrail.pii", severity)] if severity else []
    )
    # The same attributes on another span are no guardrail's.
    assert list(verdicts.of_steps(mapped({}, attributes).steps)) == []


@pytest.mark.parametrize("label", ["fail", "Failed", "unsafe", "pass", ""])
def test_an_evaluation_that_failed_is_a_finding(label: str) -> None:
    of = {"gen_ai.evaluation.name": "tone", "gen_ai.evaluation.score.label": label}
    found = mapped(AGENT, events=[("gen_ai.evaluation.result", of)])
    rules = [each.rule for each in verdicts.of_steps(found.steps)]
    assert rules == ([] if label in ("pass", "") else ["evaluation.tone"])


def test_a_record_has_20_findings_and_one_that_counts_the_rest() -> None:
    label = {"gen_ai.evaluation.score.label": "fail"}
    failed = [{**label, "gen_ai.evaluation.name": f"e{place}"} for place in range(1_021)]
    refused = {"openinference.span.kind": "GUARDRAIL", "x.guardrail.triggered": True}
    events = [("gen_ai.evaluation.result", each) for each in failed]
    found = list(verdicts.of_steps(mapped(AGENT, refused, events=events).steps))
    assert [each.rule for each in found[:-1]] == [f"evaluation.e{place}" for place in range(20)]
    # 1,001 evaluations and the guardrail's refusal, which is the worst.
    assert found[-1].data == {"more": 1_002}
    assert (found[-1].rule, found[-1].severity) == ("otlp.more", "high")
    assert found[-1].title == "1,002 more guardrails and evaluations of this record failed"

    few = mapped(AGENT, events=events[:20])
    assert len(list(verdicts.of_steps(few.steps))) == 20


def test_a_finding_fits_into_its_event() -> None:
    of = {
        "gen_ai.operation.name": "apply_guardrail",
        "gen_ai.security.decision.type": "deny",
        "guardrail.name": "n" * 999,
        "text": "x" * 300_000,
    }
    (found,) = verdicts.of_steps(mapped({}, of).steps)
    assert (len(found.rule), set(found.data)) == (200, {"span_id"})
