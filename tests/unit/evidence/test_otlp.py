"""OTLP/JSON by two readers of other people, and by hand where they are too lenient."""

import base64
import hashlib
import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.proto_json.logs.v1.logs import LogsData
from opentelemetry.proto_json.trace.v1.trace import TracesData

from app.evidence import bundle as bundles
from app.evidence import otlp
from app.evidence.bundle import Bundle
from app.evidence.otlp import MAX_LEVELS, any_value
from tests.unit.evidence import records
from tests.unit.evidence.records import AGENT, RECORD, VERSION, golden, made_of, step

CREATED, FAILED = "record.created", "record.step.failed"


def traces(bundle: Bundle) -> Any:
    return json.loads(b"".join(otlp.write_traces(bundle, version=VERSION)))


def logs(bundle: Bundle) -> Any:
    return json.loads(b"".join(otlp.write_logs(bundle, version=VERSION)))


def spans(bundle: Bundle) -> list[Any]:
    (resource,) = traces(bundle)["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    found: list[Any] = scope["spans"]
    return found


def log_records(bundle: Bundle) -> list[Any]:
    (resource,) = logs(bundle)["resourceLogs"]
    (scope,) = resource["scopeLogs"]
    found: list[Any] = scope.get("logRecords", [])
    return found


def attributes(message: Any) -> dict[str, Any]:
    names = [each.get("key", "") for each in message["attributes"]]
    assert len(set(names)) == len(names), "an attribute stands there twice"
    return {each.get("key", ""): each.get("value", {}) for each in message["attributes"]}


def for_protobuf(value: Any) -> Any:
    """Write ids as protobuf's own JSON has them: base64, where OTLP has hex."""
    if isinstance(value, list):
        return [for_protobuf(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(item)).decode()
        if name in ("traceId", "spanId", "parentSpanId")
        else for_protobuf(item)
        for name, item in value.items()
    }


def test_a_record_s_bytes_never_change() -> None:
    bundle = bundles.read(golden("bundle.json"), AGENT)
    for write, name in (
        (otlp.write_traces, "otlp-traces.json"),
        (otlp.write_logs, "otlp-logs.json"),
    ):
        assert b"".join(write(bundle, version=VERSION)) == golden(name)


@given(records.bundles)
@settings(max_examples=40)
def test_two_readers_know_every_field_and_give_every_document_back(bundle: Bundle) -> None:
    of_traces, of_logs = traces(bundle), logs(bundle)
    assert TracesData.from_dict(of_traces).to_dict() == of_traces
    assert LogsData.from_dict(of_logs).to_dict() == of_logs
    for message, made in (
        (trace_pb2.TracesData(), for_protobuf(of_traces)),
        (logs_pb2.LogsData(), for_protobuf(of_logs)),
    ):
        json_format.ParseDict(made, message)
        back = json_format.MessageToDict(message, use_integers_for_enums=True)
        assert back == made
        # In the wire form, too: nesting has a limit there.
        assert type(message).FromString(message.SerializeToString()) == message


@given(records.bundles_v1)
@settings(max_examples=40)
def test_every_step_is_a_span_below_the_record_and_every_event_stands_in_both(
    bundle: Bundle,
) -> None:
    root, *below = spans(bundle)
    record, steps = bundle["record"], bundle["steps"]
    trace = hashlib.sha256(record["session"]["id"].encode()).digest()[:16].hex()
    expected = [
        hashlib.sha256(f"{record['id']}:{index}".encode()).digest()[:8].hex()
        for index in range(-1, len(steps))
    ]
    assert [each["spanId"] for each in (root, *below)] == expected
    assert {each["traceId"] for each in (root, *below)} == {trace}
    assert "parentSpanId" not in root
    assert {each["parentSpanId"] for each in below} <= {root["spanId"]}
    assert [len(each.get("events", [])) for each in below] == [
        len(each["events"]) for each in steps
    ]
    for each in (root, *below):
        attributes(each)

    of_spans = [(span["spanId"], event) for span in below for event in span.get("events", [])]
    failed = [span["spanId"] for span in below if span.get("status") == {"code": 2}]
    made = log_records(bundle)
    assert made[0]["spanId"] == root["spanId"]
    assert [each["spanId"] for each in made if each.get("eventName") == FAILED] == failed
    of_logs = []
    for each in made:
        assert each.pop("traceId") == trace
        each.pop("observedTimeUnixNano", None)
        assert each.pop("body")["stringValue"], "what has no body is dropped or hidden"
        severity = (each.pop("severityNumber"), each.pop("severityText"))
        assert severity in ((9, "INFO"), (17, "ERROR"))
        assert each.pop("flags") == 1
        if "eventName" in each:
            each["name"] = each.pop("eventName")
        if each.get("name") not in (CREATED, FAILED):
            of_logs.append((each.pop("spanId"), each))
    assert of_logs == of_spans


TRACE, OTHER_TRACE = "5" * 32, "6" * 32
ROOT, CHILD, ABOVE = "1" * 16, "2" * 16, "3" * 16


def test_spans_come_back_with_their_ids_parents_times_links_and_one_conversation() -> None:
    link = {"trace_id": OTHER_TRACE, "span_id": CHILD, "attributes": {"why": "retry"}}
    said = {
        "gen_ai.conversation.id": "c-17",
        "input.value": "q",
        "otel.status_description": "no quota",
    }
    bundle = made_of(
        step(
            "POST /ask",
            kind="trace",
            span_id=ROOT,
            parent_span_id=ABOVE,
            links=[link],
            started_at="2026-01-31T12:00:00.123456789Z",
        ),
        step(
            "chat m",
            kind="chat",
            span_id=CHILD,
            parent_span_id=ROOT,
            attributes=said,
            inputs={"value": "q"},
            outputs={"value": 1},
            status="error",
        ),
        trace_id=TRACE,
        session={"id": RECORD["session"]["id"], "external_id": "c-17#2"},
    )
    root, child = spans(bundle)
    assert (root["traceId"], root["spanId"], root["parentSpanId"]) == (TRACE, ROOT, ABOVE)
    assert (child["traceId"], child["spanId"], child["parentSpanId"]) == (TRACE, CHILD, ROOT)
    assert (root["name"], child["name"]) == ("POST /ask", "chat m")
    assert root["startTimeUnixNano"] == "1769860800123456789"
    (linked,) = root["links"]
    assert (linked["traceId"], linked["spanId"]) == (OTHER_TRACE, CHILD)
    assert attributes(linked) == {"why": {"stringValue": "retry"}}
    for each in (root, child):
        assert attributes(each)["gen_ai.conversation.id"] == {"stringValue": "c-17"}
        assert "gen_ai.operation.name" not in attributes(each)
    assert attributes(root)["record.id"] == {"stringValue": RECORD["id"]}
    assert "record.id" not in attributes(child)
    # What its attributes say stands there once, and what they do not say is not lost.
    assert "record.step.inputs" not in attributes(child)
    assert "record.step.outputs" in attributes(child)
    created, failed = log_records(bundle)
    assert (created["traceId"], created["spanId"]) == (TRACE, ROOT)
    assert (failed["traceId"], failed["spanId"]) == (TRACE, CHILD)
    assert failed["body"] == {"stringValue": "chat m failed: no quota"}
    assert child["status"] == {"code": 2, "message": "no quota"}


def test_a_step_that_says_its_span_alone_stands_under_the_record() -> None:
    bundle = made_of(
        step("a", span_id=CHILD, parent_span_id=ABOVE), step("b", span_id=ROOT), step("c")
    )
    root, *below = spans(bundle)
    assert [each["parentSpanId"] for each in below] == [ABOVE, root["spanId"], root["spanId"]]
    assert [each["spanId"] for each in below[:2]] == [CHILD, ROOT]
    of_session = hashlib.sha256(RECORD["session"]["id"].encode()).digest()[:16].hex()
    assert {each["traceId"] for each in (root, *below)} == {of_session}


def test_a_conversation_is_named_by_the_spans_or_the_session_s_owner() -> None:
    session = {"id": RECORD["session"]["id"], "external_id": "run 5"}
    for members, expected in (
        ({}, RECORD["session"]["id"]),
        ({"session": session}, "run 5"),
    ):
        root, *_ = spans(made_of(step("a"), **members))
        assert attributes(root)["gen_ai.conversation.id"] == {"stringValue": expected}


def test_the_agent_is_named_by_its_owner_s_id_where_it_has_one() -> None:
    agent = {"id": RECORD["agent"]["id"], "name": "Loans", "external_id": "loans", "version": "2"}
    (root,) = spans(made_of(agent=agent))
    told = attributes(root)
    assert root["name"] == "invoke_agent Loans"
    assert told["gen_ai.agent.id"] == {"stringValue": "loans"}
    assert told["gen_ai.agent.version"] == {"stringValue": "2"}


def test_a_step_that_nobody_saw_end_has_no_end() -> None:
    unended = step("a", started_at="2026-01-31T12:00:07Z", status="error")
    del unended["ended_at"]
    bundle = made_of(step("b"), unended)
    root, _, span = spans(bundle)
    assert "endTimeUnixNano" not in span
    assert root["endTimeUnixNano"] == span["startTimeUnixNano"]
    assert log_records(bundle)[1]["timeUnixNano"] == span["startTimeUnixNano"]


def test_an_approval_stands_in_both() -> None:
    decided = {
        "approved_by": "dana",
        "at": RECORD["created_at"],
        "decision": "approved",
        "note": "in time",
    }
    bundle = made_of(approvals=[decided])
    _, approval = log_records(bundle)
    assert approval["eventName"] == "record.approval"
    assert approval["body"] == {"stringValue": "dana decided: approved: in time"}
    assert attributes(approval)["approval.approved_by"] == {"stringValue": "dana"}
    (root,) = spans(bundle)
    assert "approved" in json.dumps(attributes(root)["record.approvals"])


def test_a_step_that_failed_has_a_log_record_that_says_why() -> None:
    told = {"error.type": "timeout", "error.message": "no answer in 5 s"}
    bundle = made_of(step("a"), step("pay", status="error", attributes=told), step("c"))
    _, failed = log_records(bundle)
    assert failed["body"] == {"stringValue": "pay failed: no answer in 5 s"}
    for each in (failed, spans(bundle)[2]):
        assert attributes(each)["error.type"] == {"stringValue": "timeout"}


def test_an_event_is_told_in_words_and_an_exception_as_an_error() -> None:
    said = {"exception.type": "IOError", "exception.message": "disk full"}
    happened = [
        {"name": "retry", "at": RECORD["created_at"]},
        {"name": "exception", "at": RECORD["created_at"], "attributes": said},
        {"name": "", "at": RECORD["created_at"]},
    ]
    _, retry, exception, unnamed = log_records(made_of(step("save", events=happened)))
    assert (retry["body"], retry["severityText"]) == ({"stringValue": "save: retry"}, "INFO")
    assert exception["body"] == {"stringValue": "save: exception: disk full"}
    assert (exception["severityNumber"], exception["severityText"]) == (17, "ERROR")
    assert unnamed["body"] == {"stringValue": "save"}
    (_, nothing) = log_records(made_of(step("", events=happened[2:])))
    assert nothing["body"] == {"stringValue": "event"}


def test_an_attribute_without_a_name_has_one_here() -> None:
    happened = [{"name": "e", "at": RECORD["created_at"], "attributes": {"": 1}}]
    _, span = spans(made_of(step("a", attributes={"": "x"}, events=happened)))
    assert attributes(span)["record.unnamed"] == {"stringValue": "x"}
    assert attributes(span["events"][0]) == {"record.unnamed": {"intValue": "1"}}


def test_the_record_lasts_from_the_first_start_to_the_last_end() -> None:
    root, *_ = spans(
        made_of(
            step("a", ended_at="2026-01-31T12:00:09.000000001Z"),
            step("b", started_at="2026-01-31T11:00:00+00:30"),
        )
    )
    assert root["startTimeUnixNano"] == "1769855400000000000"
    assert root["endTimeUnixNano"] == "1769860809000000001"


def test_a_record_without_steps_is_a_moment() -> None:
    (told,) = spans(made_of())
    assert told["startTimeUnixNano"] == told["endTimeUnixNano"] == "1769860804000000000"
    (untold,) = spans({**made_of(), "record": {**RECORD, "occurred_at": None}})
    assert untold["startTimeUnixNano"] == untold["endTimeUnixNano"] == "1769860805123456000"


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("1969-12-31T23:59:59Z", None),
        ("2554-07-21T23:34:33.709551615Z", str(2**64 - 1)),
        ("2554-07-21T23:34:33.709551616Z", None),
    ],
)
def test_a_moment_that_otlp_cannot_say_is_unknown(at: str, said: str | None) -> None:
    _, span = spans(made_of(step("a", started_at=at)))
    assert span.get("startTimeUnixNano") == said


def test_a_step_that_neither_failed_nor_went_well_has_no_status() -> None:
    _, span = spans(made_of(step("a", status="unset")))
    assert "status" not in span
    assert "error.type" not in attributes(span)


@pytest.mark.parametrize(
    ("kind", "told", "name", "span_kind"),
    [
        ("chat", {}, "chat a", 3),
        ("invoke_workflow", {"gen_ai.agent.name": "month end"}, "invoke_workflow month end", 1),
        ("invoke_workflow", {}, "invoke_workflow a", 1),
    ],
)
def test_an_operation_is_named_for_its_target_or_else_for_the_step(
    kind: str, told: dict[str, str], name: str, span_kind: int
) -> None:
    _, span = spans(made_of(step("a", kind=kind, attributes=told)))
    assert (span["name"], span["kind"]) == (name, span_kind)


def test_a_step_of_an_unknown_kind_keeps_its_own_name() -> None:
    _, span = spans(made_of(step("look it up", kind="human review", inputs={"a": None})))
    told = attributes(span)
    assert (span["name"], span["kind"]) == ("look it up", 1)
    assert not any(name.startswith("gen_ai.") for name in told)
    assert told["record.step.inputs"] == {"kvlistValue": {"values": [{"key": "a"}]}}


def test_what_a_step_says_of_itself_is_kept_but_for_its_place_in_the_record() -> None:
    said = {"gen_ai.operation.name": "plan", "gen_ai.tool.name": "x", "record.step.index": 7}
    _, span = spans(made_of(step("a", attributes=said)))
    told = attributes(span)
    assert span["name"] == "plan a"
    assert told["gen_ai.tool.name"] == {"stringValue": "x"}
    assert told["record.step.index"] == {"intValue": "0"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {}),
        ("", {"stringValue": ""}),
        (False, {"boolValue": False}),
        (0, {"intValue": "0"}),
        (2**53 - 1, {"intValue": "9007199254740991"}),
        (0.5, {"doubleValue": 0.5}),
        (1e300, {"doubleValue": 1e300}),
        ([], {"arrayValue": {}}),
        ({}, {"kvlistValue": {}}),
        (
            [None, [1]],
            {"arrayValue": {"values": [{}, {"arrayValue": {"values": [{"intValue": "1"}]}}]}},
        ),
        ({"": None}, {"kvlistValue": {"values": [{}]}}),
        ({"a": False}, {"kvlistValue": {"values": [{"key": "a", "value": {"boolValue": False}}]}}),
    ],
)
def test_every_json_value_has_its_any_value(value: Any, expected: Any) -> None:
    assert any_value(value) == expected


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_what_is_nested_too_deep_for_protobuf_is_text(wrap: Any) -> None:
    deepest: Any = 1
    for _ in range(MAX_LEVELS):
        deepest = wrap(deepest)
    assert "stringValue" not in json.dumps(any_value(deepest))
    for _ in range(120 - MAX_LEVELS):
        deepest = wrap(deepest)
    happened = [{"name": "e", "at": RECORD["created_at"], "attributes": {"deep": deepest}}]
    bundle = made_of(step("a", events=happened))
    message = trace_pb2.TracesData()
    json_format.ParseDict(for_protobuf(traces(bundle)), message)
    assert type(message).FromString(message.SerializeToString()) == message
    inside: Any = any_value(deepest)
    for _ in range(MAX_LEVELS):
        (inside,) = next(iter(inside.values()))["values"]
        inside = inside.get("value", inside)
    for _ in range(MAX_LEVELS):
        deepest = next(iter(deepest.values())) if isinstance(deepest, dict) else deepest[0]
    assert json.loads(inside["stringValue"]) == deepest
