"""Traces that are odd, large or slow: each costs itself at most, and no other."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core import sessions
from app.core.callers import Caller, Role
from app.core.keys import keyring
from app.core.traces import assembly
from app.core.traces.staging import Sent, Staging
from app.database import Database
from app.errors import ServiceError, Unauthenticated
from app.evidence.spans import export, mapping
from app.evidence.spans.runs import Run
from app.lib.metric_registry import Tally
from tests.api.traces.test_front_door import RUN, Assemble, bundle, records, send, taken, trace
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import revoke
from tests.support.faults import LONG_ENOUGH, until
from tests.support.spans import AGENT, as_json, request, span


def test_a_trace_that_takes_too_long_holds_up_no_other(
    api: ApiOf, assemble: Assemble, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(send(api(), request(span(1, trace=1, name="slow"), span(2, trace=2, name="quick"))))
    record_of = mapping.record_of

    def slow(run: Run) -> mapping.Mapped:
        if run.spans[0].span.name == "slow":
            time.sleep(1)
        return record_of(run)

    monkeypatch.setattr(mapping, "record_of", slow)
    # The server ends a transaction that is idle for so long.
    monkeypatch.setattr(database, "idle_seconds", 0.5)
    assemble()
    assert [each["title"] for each in records(api())] == ["quick"]
    assert trace(api(), "staged")["trace_id"] == f"{1:032x}"

    monkeypatch.undo()
    assemble(30)
    assert [each["title"] for each in records(api())] == ["slow", "quick"]


def test_a_trace_of_too_many_spans_for_one_transaction_is_taken_in_parts(
    api: ApiOf, assemble: Assemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "MOST_SPANS", 2)
    taken(send(api(), request(*(span(each, each - 1 or None, start=each) for each in range(1, 6)))))
    assemble()
    found = [bundle(api(), each)["steps"] for each in reversed(records(api()))]
    assert [[step["name"][5:] for step in steps] for steps in found] == [
        *(["1", "2"], ["3", "4"], ["5"]),
    ]
    assert trace(api(), "assembled")["spans"] == 5


def test_a_trace_of_a_good_key_is_kept_beside_that_of_a_revoked_one(
    api: ApiOf, mint: Mint, database: Database, assemble: Assemble
) -> None:
    doomed, good = mint("write"), mint("write")
    callers = [keyring.authenticate(database, key, "t") for key in (doomed, good)]
    revoke(api, doomed)
    odd = span(9)
    odd.start_time_unix_nano = odd.end_time_unix_nano = 0
    sent = request(*RUN.resource_spans[0].scope_spans[0].spans, odd)
    found = export.read(sent.SerializeToString(), is_json=False)
    staging = Staging(database, Tally(), 0)
    # Of one trace, in one call.
    results = staging._run([Sent(each, "", found) for each in (*callers, callers[1])])
    assert [type(each) for each in results] == [Unauthenticated, type(None), type(None)]
    assert trace(api(), "staged")["spans"] == 3
    assemble()
    assert len(records(api())) == 1


def test_large_requests_of_few_spans_are_staged_one_by_one(
    database: Database, tenant: FreshTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[list[str]] = []
    opened = Event()
    run = Staging._run

    def noted(staging: Staging, sent: Sequence[Sent]) -> Sequence[ServiceError | None]:
        runs.append([each.exporter for each in sent])
        assert opened.wait(LONG_ENOUGH)
        return run(staging, sent)

    monkeypatch.setattr(Staging, "_run", noted)
    staging = Staging(database, Tally(), 0)
    caller = Caller(tenant.id, ids.new(), Role.WRITE, None, "t")
    sizes = [("first", 1), ("second", 1), *(("large", 3_000_000),) * 3, *(("small", 1),) * 3]
    with ThreadPoolExecutor(len(sizes)) as pool:
        tasks = []
        try:
            for number, (name, size) in enumerate(sizes, 1):
                body = request(span(number, attributes={"text": "x" * size})).SerializeToString()
                sent = Sent(caller, name, export.read(body, is_json=False))
                tasks.append(pool.submit(staging.stage, sent))
                until(lambda: len(runs) + staging._group.waiting == len(tasks))
        finally:
            opened.set()
        # The key is no key at all, which is found out by the statement.
        errors = [type(task.exception(LONG_ENOUGH)) for task in tasks]
    assert errors == [Unauthenticated] * len(sizes)
    together = ["large", "large"], ["large", "small", "small", "small"]
    assert sorted(runs[2:]) == sorted(together)


@pytest.mark.parametrize("at", ["-99999999999999999999", 10**30, -5])
def test_odd_versions_and_times_of_events_cost_no_trace(
    api: ApiOf, assemble: Assemble, at: Any
) -> None:
    odd = as_json(request(span(1, attributes={**AGENT, "gen_ai.agent.version": "1\0"})))
    odd["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["events"] = [
        {"name": "e", "timeUnixNano": at}
    ]
    headers = {"Content-Type": "application/json"}
    answer = api().post("/v1/traces", data=json.dumps(odd).encode(), headers=headers)
    assert (answer.status_code, answer.data) == (200, b"{}")
    assemble()
    (record,) = records(api())
    (step,) = bundle(api(), record)["steps"]
    assert step["events"][0]["at"] == step["started_at"]
    assert api().get(f"/v1/agents/{record['agent_id']}").json["version"] == "1\ufffd"


def test_a_conversation_that_ended_very_often_is_found_in_few_steps(
    api: ApiOf, assemble: Assemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {**AGENT, "gen_ai.conversation.id": "daily"}
    taken(send(api(), request(span(1, attributes=said))))
    assemble()
    (record,) = records(api())
    for number in range(1, 31):
        opened = {"agent_id": record["agent_id"], "principal": "unknown"}
        name = "daily" if number == 1 else f"daily%23{number}"
        path = f"/v1/sessions/by-external-id/{name}"
        session = api().request("PUT", path, json=opened).json
        ended = api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})
        assert ended.status_code == 200
    asked = []
    get_or_create = sessions.get_or_create

    def noted(*arguments: Any) -> Any:
        asked.append([each.external_id for each in arguments[2]])
        return get_or_create(*arguments)

    monkeypatch.setattr(sessions, "get_or_create", noted)
    taken(send(api(), request(span(1, trace=2, attributes=said))))
    assemble()
    newest = api().get(f"/v1/sessions/{records(api())[0]['session_id']}").json
    assert newest["external_id"] == "daily#31"
    assert asked == [["daily"], ["daily#31"]]


def test_thousands_of_findings_of_a_trace_keep_their_order(
    api: ApiOf, assemble: Assemble, admin_engine: Engine, tenant: FreshTenant
) -> None:
    label = {"gen_ai.evaluation.score.label": "fail"}
    failed = [{**label, "gen_ai.evaluation.name": f"e{place}"} for place in range(5_000)]
    events = [("gen_ai.evaluation.result", each) for each in failed]
    # Each is a root, and so a record, which has 20 findings at most.
    runs = [
        span(1 + place, start=place, events=events[20 * place : 20 * (place + 1)])
        for place in range(250)
    ]
    taken(send(api(), request(*runs)))
    assemble()
    query = text(
        "SELECT convert_from(payload, 'UTF8')::json #>> '{data,rule}' FROM events"
        " WHERE tenant_id = :tenant AND type = 'finding.created' ORDER BY id"
    )
    with admin_engine.connect() as owner:
        rules = owner.scalars(query, {"tenant": tenant.id}).all()
    assert rules == [f"evaluation.e{place}" for place in range(5_000)]
