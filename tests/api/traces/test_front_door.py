"""Spans that exporters send, and the records that they become."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from sqlalchemy import Engine, text

from app.settings import Settings
from tests.support.callers.api import Answer, Api, ApiOf, FreshTenant, Mint
from tests.support.spans import AGENT, STAGED, TOOL, as_json, request, span

PROTOBUF = {"Content-Type": "application/x-protobuf", "User-Agent": "OTel-Tests/1"}

# A `google.rpc.Status` has the same fields: a number, then a text.
Status = ExportTracePartialSuccess

Assemble = Callable[..., None]


def send(api: Api, sent: ExportTraceServiceRequest, **headers: str) -> Answer:
    return api.post("/v1/traces", data=sent.SerializeToString(), headers={**PROTOBUF, **headers})


def taken(answer: Answer) -> ExportTraceServiceResponse:
    assert answer.status_code == 200, answer.data
    assert answer.content_type == "application/x-protobuf"
    read: ExportTraceServiceResponse = ExportTraceServiceResponse.FromString(answer.data)
    return read


def records(api: Api) -> list[dict[str, Any]]:
    found = api.get("/v1/records?limit=200")
    assert found.status_code == 200
    return list(found.json["data"])


def bundle(api: Api, record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(api.get(f"/v1/records/{record['id']}/bundle").data)
    return found


def trace(api: Api, status: str) -> dict[str, Any]:
    (found,) = api.get(f"/v1/traces?status={status}").json["data"]
    return dict(found)


RUN = request(
    span(3, 2, attributes={**TOOL, "gen_ai.tool.call.arguments": '{"cents": 4870}'}, start=1),
    span(2, 1, attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-4"}),
    span(1, attributes={**AGENT, "gen_ai.conversation.id": "chat-7", "user.id": "dana"}, seconds=9),
)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize("is_json", [False, True])
def test_a_run_becomes_one_record(
    api: ApiOf, assemble: Assemble, *, is_json: bool, coding: str
) -> None:
    body = json.dumps(as_json(RUN)).encode() if is_json else RUN.SerializeToString()
    kind = "application/json" if is_json else "application/x-protobuf"
    answer = api().post(
        "/v1/traces",
        data=gzip.compress(body) if coding == "gzip" else body,
        headers={"Content-Type": kind, "Content-Encoding": coding, "User-Agent": "OTel-Tests/1"},
    )
    assert (answer.status_code, answer.content_type) == (200, kind)
    assert answer.data == (b"{}" if is_json else b"")
    staged = trace(api(), "staged")
    assert (staged["spans"], staged["service"], staged["exporter"]) == (3, "desk", "OTel-Tests/1")
    assert staged["trace_id"] == f"{1:032x}"

    assemble()

    (record,) = records(api())
    assert record["kind"] == "invoke_agent"
    assert record["title"] == "span 1"
    assert record["principal"] == "dana"
    assert record["labels"] == {"trace_id": f"{1:032x}"}
    assert record["occurred_at"] == "2026-01-31T12:00:00.000000Z"
    agent = api().get(f"/v1/agents/{record['agent_id']}").json
    assert (agent["external_id"], agent["name"]) == ("refund-desk", "refund-desk")
    session = api().get(f"/v1/sessions/{record['session_id']}").json
    assert session["external_id"] == "chat-7"
    signed = bundle(api(), record)
    assert signed["content"] == {"resource": {"service.name": "desk"}}
    assert [step["name"] for step in signed["steps"]] == ["span 1", "span 2", "span 3"]
    assert [step["kind"] for step in signed["steps"]] == ["invoke_agent", "chat", "execute_tool"]
    assert signed["steps"][2]["inputs"] == {"cents": 4870}
    assembled = trace(api(), "assembled")
    assert assembled["record_ids"] == [record["id"]]


def test_the_same_batch_three_times_changes_nothing(api: ApiOf, assemble: Assemble) -> None:
    for _ in range(3):
        taken(send(api(), RUN))
    assert trace(api(), "staged")["spans"] == 3
    assemble()
    for _ in range(3):
        taken(send(api(), RUN))
    assemble(3600)
    assert len(records(api())) == 1
    assert trace(api(), "assembled")["spans"] == 3


def test_nothing_is_assembled_before_its_root_or_while_spans_come(
    api: ApiOf, assemble: Assemble, admin_engine: Engine, tenant: FreshTenant
) -> None:
    taken(send(api(), request(span(2, 1, attributes=TOOL))))
    assemble(50)
    assert records(api()) == []
    taken(send(api(), request(span(1, seconds=None))))
    assemble(50)
    assert records(api()) == []
    # The root has ended, and something came within the last two seconds.
    taken(send(api(), request(span(1))))
    assemble(1)
    assert records(api()) == []
    assemble(1.5)
    (record,) = records(api())
    assert len(bundle(api(), record)["steps"]) == 2
    # The root was sent twice, and leaves no bytes staged.
    query = text("SELECT staged_bytes FROM traces WHERE tenant_id = :tenant")
    with admin_engine.connect() as owner:
        assert owner.scalars(query, {"tenant": tenant.id}).all() == [0]


def test_a_root_that_never_comes_leaves_an_incomplete_record(
    api: ApiOf, assemble: Assemble
) -> None:
    taken(send(api(), request(span(2, 1), span(3, 2, attributes=TOOL, start=1))))
    assemble(61)
    (record,) = records(api())
    assert record["labels"]["incomplete"] == "true"
    assert record["title"] == "span 2"
    assert trace(api(), "incomplete")["record_ids"] == [record["id"]]

    taken(send(api(), request(span(1, attributes={**AGENT, "session.id": "of the root"}))))
    assemble()
    later, first = records(api())
    assert later["labels"]["supplement_of"] == first["id"] == record["id"]
    assert later["session_id"] == first["session_id"]
    assert trace(api(), "assembled")["record_ids"] == [first["id"], later["id"]]


def test_later_spans_are_a_supplement_that_names_the_first_record(
    api: ApiOf, assemble: Assemble
) -> None:
    taken(send(api(), RUN))
    assemble()
    taken(send(api(), request(span(4, 2, attributes={**TOOL, "user.id": "someone else"}))))
    assemble()
    later, first = records(api())
    assert later["labels"] == {"trace_id": f"{1:032x}", "supplement_of": first["id"]}
    assert [later[name] for name in ("session_id", "agent_id", "principal")] == [
        first[name] for name in ("session_id", "agent_id", "principal")
    ]
    assert [step["name"] for step in bundle(api(), later)["steps"]] == ["span 4"]


def test_each_local_root_is_a_record_of_its_own(api: ApiOf, assemble: Assemble) -> None:
    here = request(span(1), span(2, 1, attributes=TOOL))
    there = request(
        span(10, 2, attributes={**AGENT, "gen_ai.agent.name": "billing"}, flags=0x301),
        span(11, 10, attributes=TOOL),
        resource={"service.name": "billing"},
    )
    taken(send(api(), there))
    assemble()
    (record,) = records(api())
    assert [step["name"] for step in bundle(api(), record)["steps"]] == ["span 10", "span 11"]
    taken(send(api(), here))
    assemble()
    first, _ = records(api())
    assert [step["name"] for step in bundle(api(), first)["steps"]] == ["span 1", "span 2"]
    assert "supplement_of" not in first["labels"]
    # The conversation is one, the trace's; and it belongs to one agent.
    names = {each["external_id"] for each in api().get("/v1/sessions").json["data"]}
    assert names == {f"{1:032x}", f"{1:032x}#refund-desk"}


def test_a_trace_without_agents_is_counted_and_dropped(api: ApiOf, assemble: Assemble) -> None:
    taken(send(api(), request(span(1, attributes={"http.request.method": "GET"}))))
    assemble()
    assert records(api()) == []
    dropped = trace(api(), "dropped")
    assert (dropped["spans"], dropped["record_ids"]) == (1, [])
    assert dropped["reason"] == "It has no span of an agent, a tool or a model."


def test_a_conversation_that_ended_goes_on_in_a_next_session(
    api: ApiOf, assemble: Assemble
) -> None:
    conversation = {**AGENT, "session.id": "chat"}
    for number in (1, 2, 3):
        taken(send(api(), request(span(1, trace=number, attributes=conversation))))
        assemble()
        (newest, *_) = api().get("/v1/sessions").json["data"]
        assert newest["external_id"] == ("chat" if number == 1 else f"chat#{number}")
        body = {"outcome": "succeeded"}
        assert api().post(f"/v1/sessions/{newest['id']}/complete", body).status_code == 200


def test_guardrails_and_evaluations_are_findings_once(api: ApiOf, assemble: Assemble) -> None:
    of_guardrail = {
        "gen_ai.operation.name": "apply_guardrail",
        "gen_ai.guardian.name": "pii",
        "gen_ai.security.decision.type": "deny",
    }
    evaluation = {
        "gen_ai.evaluation.name": "relevance",
        "gen_ai.evaluation.score.label": "fail",
        "gen_ai.evaluation.explanation": "Of another order.",
    }
    sent = request(
        span(3, 1, attributes=of_guardrail),
        span(2, 1, attributes=TOOL, events=[("gen_ai.evaluation.result", evaluation)]),
        span(1),
    )
    for _ in range(2):
        taken(send(api(), sent))
        assemble()
    (record,) = records(api())
    found = api().get("/v1/findings?source=otlp").json["data"]
    assert {(each["rule"], each["severity"], each["record_id"]) for each in found} == {
        ("guardrail.pii", "high", record["id"]),
        ("evaluation.relevance", "medium", record["id"]),
    }
    assert len(found) == 2


def test_spans_that_can_never_be_taken_are_told_and_the_others_kept(
    api: ApiOf, assemble: Assemble
) -> None:
    sent = request(
        span(1),
        span(2, 1, span_id=b"short"),
        span(3, 1, trace_id=b""),
        span(4, 1, start_time_unix_nano=2**63),
    )
    partial = taken(send(api(), sent)).partial_success
    assert partial.rejected_spans == 3
    assert partial.error_message == "the span id has 5 bytes and not 8"
    assemble()
    (record,) = records(api())
    assert len(bundle(api(), record)["steps"]) == 1
    rejected = trace(api(), "rejected")
    assert (rejected["trace_id"], rejected["spans"]) == ("", 0)


def test_a_pinned_key_takes_no_other_agent_and_no_other_principal(
    api: ApiOf, mint: Mint, assemble: Assemble
) -> None:
    agent = api().post("/v1/agents", {"name": "refund-desk"}).json
    key = mint("write", {"agent_id": agent["id"], "principal": "maria"})
    sent = request(
        span(1, attributes={**AGENT, "user.id": "maria"}),
        span(2, 1, attributes={**TOOL, "gen_ai.agent.name": "billing"}),
        span(3, 1, attributes={**TOOL, "enduser.id": "dana"}),
        resource={"service.name": "names nobody"},
    )
    assert taken(send(api(key), sent)).partial_success.rejected_spans == 2
    # Under another pin equal ids are other spans.
    taken(send(api(), request(span(1))))
    assemble()
    assert len(records(api())) == 2
    (record,) = records(api(key))
    assert (record["agent_id"], record["principal"]) == (agent["id"], "maria")
    assert len(api(key).get("/v1/traces").json["data"]) == 1


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff", {}, 400),
        (b"[]", {}, 400),
        (b"\x0a\x05\x12", {}, 400),
        (b"\x1f\x8b", {"Content-Encoding": "gzip"}, 400),
        (b"{}", {"Content-Encoding": "zstd"}, 415),
        (bytes(8 * 1024 * 1024 + 1), {}, 413),
    ],
)
def test_errors_are_a_status_in_the_encoding_of_the_request(
    api: ApiOf, *, body: bytes, headers: dict[str, str], status: int, is_json: bool
) -> None:
    kind = "application/json" if is_json else "application/x-protobuf"
    answer = api().post("/v1/traces", data=body, headers={"Content-Type": kind, **headers})
    assert (answer.status_code, answer.content_type) == (status, kind)
    said = answer.json if is_json else {"message": Status.FromString(answer.data).error_message}
    assert said["message"]


def test_other_media_types_are_refused(api: ApiOf) -> None:
    answer = api().post("/v1/traces", data=b"", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415


def test_a_tenant_with_too_much_staged_is_told_to_come_back(
    settings: Settings, api: ApiOf, admin_engine: Engine, tenant: FreshTenant
) -> None:
    with admin_engine.begin() as owner:
        full = {"tenant": tenant.id, "bytes": settings.tenant_staged_mib << 20}
        owner.execute(text(STAGED), full)
    # This one is counted with what was staged; the next is refused.
    taken(send(api(), request(span(6, 1))))
    answer = send(api(), request(span(7, 1)))
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "10"
    assert "bytes of spans" in Status.FromString(answer.data).error_message


def test_a_supplement_to_an_ended_session_goes_into_the_next(
    api: ApiOf, assemble: Assemble
) -> None:
    taken(send(api(), RUN))
    assemble()
    (first,) = records(api())
    ended = api().post(f"/v1/sessions/{first['session_id']}/complete", {"outcome": "succeeded"})
    assert ended.status_code == 200
    taken(send(api(), request(span(4, 2, attributes=TOOL))))
    assemble()
    later, _ = records(api())
    assert later["labels"]["supplement_of"] == first["id"]
    (newest, _) = api().get("/v1/sessions").json["data"]
    assert (newest["id"], newest["external_id"]) == (later["session_id"], "chat-7#2")


def test_a_key_that_is_not_good_is_told_in_protobuf_too(api: ApiOf) -> None:
    answer = api("svc_none").post("/v1/traces", data=b"", headers=PROTOBUF)
    assert (answer.status_code, answer.content_type) == (401, "application/x-protobuf")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "key" in Status.FromString(answer.data).error_message
