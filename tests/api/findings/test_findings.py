"""Findings over HTTP: their fields and events, one alone and a thousand at once, and their feed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core import findings
from app.core.keys import keyring
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import (
    NOBODY,
    finding_of,
    make_finding,
    make_record,
    make_session,
    pin_of,
    pointers,
    refused,
)

BATCH = "/v1/findings/batch"


def listed(api: Api, query: str = "") -> list[str]:
    return [finding["id"] for finding in api.get(f"/v1/findings?{query}").json["data"]]


def events(admin_engine: Engine, tenant: FreshTenant) -> list[dict[str, Any]]:
    with admin_engine.connect() as connection:
        found = connection.execute(
            text("SELECT payload FROM events WHERE tenant_id = :tenant AND type = :type"),
            {"tenant": tenant.id, "type": "finding.created"},
        )
        return [json.loads(payload) for (payload,) in found]


def test_a_finding_is_answered_alike_when_made_read_listed_and_emitted(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant
) -> None:
    session = make_session(api())
    body = finding_of(session["id"], detail="line 17\nof app.log", data={"line": 17, "é": [None]})
    made = make_finding(api(), **body)
    assert made.items() >= body.items()
    assert (made["agent_id"], made["principal"]) == (session["agent_id"], session["principal"])
    assert made["record_id"] is None
    assert api().get(f"/v1/findings/{made['id']}").json == made
    assert api().get("/v1/findings").json["data"] == [made]
    (event,) = events(admin_engine, tenant)
    assert (event["data"], event["timestamp"]) == (made, made["created_at"])


def test_a_finding_says_where_it_came_from(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    session = make_session(api())
    posted = make_finding(api(), session["id"])["id"]
    root = keyring.authenticate(database, tenant.root_key, "r")
    new = [findings.NewFinding(ids.parse("ses", session["id"]), "a.rule", "low", "a title")]
    with database.transaction(tenant.id) as tx:
        made = {
            str(source): findings.add(tx, root, new, source)[0]["id"]
            for source in (findings.Source.OTLP, findings.Source.RULE)
        }
    for source, finding_id in {"api": posted, **made}.items():
        (found,) = api().get(f"/v1/findings?source={source}").json["data"]
        assert (found["id"], found["source"]) == (finding_id, source)
    assert pointers(api().get("/v1/findings?source=me")) == ["/source"]
    sent = finding_of(session["id"], source="rule")
    assert pointers(api().post("/v1/findings", json=sent)) == ["/source"]


@pytest.mark.parametrize("data", [{}, [], "", "text", 0, -0.0, 1.0, 1e300, False, [{"a": [1]}]])
def test_data_is_any_json_and_comes_back_as_the_same_value(api: ApiOf, data: object) -> None:
    made = make_finding(api(), make_session(api())["id"], data=data)
    assert made["data"] == data
    assert api().get(f"/v1/findings/{made['id']}").json == made


def test_numbers_are_answered_alike_at_once_and_later(api: ApiOf) -> None:
    session = make_session(api())
    raw = json.dumps(finding_of(session["id"])).replace("}", ', "data": [1.0, 1e2, -0.0]}')
    made = api().post("/v1/findings", data=raw, content_type="application/json")
    assert b'"data":[1,100,0]' in made.data
    assert api().get(f"/v1/findings/{made.json['id']}").data.strip() == made.data.strip()


WRONG = [
    ({"title": ...}, "/title"),
    ({"data": None}, "/data"),
    ({"data": "x" * 262_144}, "/data"),
    ({"agent_id": "agt_" + NOBODY}, "/agent_id"),
]


def changed(session_id: str, change: dict[str, Any]) -> dict[str, Any]:
    body = finding_of(session_id) | change
    return {name: value for name, value in body.items() if value is not ...}


@pytest.mark.parametrize(("change", "pointer"), WRONG)
def test_a_wrong_field_is_refused_by_name_alone_and_in_a_batch(
    api: ApiOf, change: dict[str, Any], pointer: str
) -> None:
    session_id = make_session(api())["id"]
    wrong = changed(session_id, change)
    assert pointers(api().post("/v1/findings", wrong)) == [pointer]
    batch = {"findings": [finding_of(session_id), wrong]}
    assert pointers(api().post(BATCH, batch)) == [f"/findings/1{pointer}"]
    assert listed(api()) == []


def test_a_finding_about_a_record_is_one_of_its_session(api: ApiOf) -> None:
    session = make_session(api())
    record = make_record(api(), session["id"])
    about = {"record_id": record["id"]}
    alone = changed("", {"session_id": ...} | about)
    both = finding_of(session["id"]) | about
    made = [api().post("/v1/findings", body).json for body in (alone, both)]
    made += api().post(BATCH, {"findings": [alone, finding_of(session["id"]), both]}).json["data"]
    assert [each["record_id"] for each in made] == [record["id"]] * 3 + [None, record["id"]]
    assert {each["session_id"] for each in made} == {session["id"]}
    assert {each["agent_id"] for each in made} == {session["agent_id"]}
    assert {each["principal"] for each in made} == {session["principal"]}
    for each in made:
        assert api().get(f"/v1/findings/{each['id']}").json == each
    listed_about = listed(api(), f"record_id={record['id']}")
    assert sorted(listed_about) == sorted(each["id"] for each in made if each["record_id"])


def test_a_record_that_is_not_there_or_of_another_session_or_pin_is_not_found(
    api: ApiOf, mint: Callable[..., str], other_tenant: FreshTenant
) -> None:
    session, other = make_session(api()), make_session(api())
    record = make_record(api(), session["id"])
    stranger = make_record(
        api(other_tenant.root_key), make_session(api(other_tenant.root_key))["id"]
    )
    pinned = api(mint("write", pin_of(other)))
    for caller, about in (
        (api(), {"session_id": ..., "record_id": "rec_" + NOBODY}),
        (api(), {"session_id": ..., "record_id": stranger["id"]}),
        (api(), {"session_id": other["id"], "record_id": record["id"]}),
        (pinned, {"session_id": ..., "record_id": record["id"]}),
    ):
        body = changed("", about)
        refused(caller.post("/v1/findings", body), 404, "not-found")
        good = finding_of(other["id"])
        answer = caller.post(BATCH, {"findings": [good, body]})
        assert "/findings/1/record_id" in refused(answer, 404, "not-found")["detail"]
    assert listed(api()) == []


def test_an_event_over_256_kib_is_refused_and_one_just_below_is_taken(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant
) -> None:
    session_id = make_session(api())["id"]
    make_finding(api(), session_id, data="")
    with admin_engine.connect() as connection:
        empty = connection.scalar(
            text("SELECT length(payload) FROM events WHERE tenant_id = :tenant"),
            {"tenant": tenant.id},
        )
    room = 256 * 1024 - empty
    make_finding(api(), session_id, data="x" * room)
    answer = api().post("/v1/findings", finding_of(session_id, data="x" * (room + 1)))
    refused(answer, 422, "validation-failed")
    assert len(listed(api())) == len(events(admin_engine, tenant)) == 2


def test_the_feed_combines_its_filters(api: ApiOf) -> None:
    alice = make_session(api(), principal="alice")
    bob = make_session(api(), alice["agent_id"], principal="bob")
    carol = make_session(api(), principal="carol")
    a = make_finding(api(), alice["id"], severity="low", rule="r1")["id"]
    b = make_finding(api(), bob["id"], severity="high", rule="r1")["id"]
    c = make_finding(api(), carol["id"], severity="high", rule="r2")["id"]
    assert listed(api()) == [c, b, a]
    assert listed(api(), f"agent_id={alice['agent_id']}") == [b, a]
    assert listed(api(), "principal=carol") == [c]
    assert listed(api(), f"session_id={bob['id']}") == [b]
    assert listed(api(), "severity=high") == [c, b]
    assert listed(api(), "rule=r1") == [b, a]
    assert listed(api(), f"severity=high&rule=r1&agent_id={alice['agent_id']}") == [b]
    assert listed(api(), "severity=critical") == []
    assert listed(api(), f"session_id=ses_{NOBODY}") == []


def test_a_batch_is_answered_in_its_order_and_listed_in_it_too(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant
) -> None:
    one, other = make_session(api()), make_session(api())
    body = [
        finding_of((one, other)[number % 2]["id"], title=f"finding {number}", data=number)
        for number in range(1000)
    ]
    answer = api().post(BATCH, {"findings": body})
    assert answer.status_code == 201
    made = answer.json["data"]
    assert [finding["title"] for finding in made] == [finding["title"] for finding in body]
    assert made[1]["agent_id"] == other["agent_id"]
    assert listed(api(), "limit=200") == [finding["id"] for finding in made][:-201:-1]
    emitted = {event["data"]["id"]: event["data"] for event in events(admin_engine, tenant)}
    assert emitted == {finding["id"]: finding for finding in made}


def test_one_unknown_session_refuses_the_whole_batch(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant
) -> None:
    session_id = make_session(api())["id"]
    body = [finding_of(session_id), finding_of("ses_" + NOBODY), finding_of(session_id)]
    problem = refused(api().post(BATCH, {"findings": body}), 404, "not-found")
    assert "/findings/1/session_id" in problem["detail"]
    assert listed(api()) == []
    assert events(admin_engine, tenant) == []


def test_one_event_too_large_refuses_the_whole_batch_by_its_place(api: ApiOf) -> None:
    session_id = make_session(api())["id"]
    body = [finding_of(session_id), finding_of(session_id, data="x" * 262_000)]
    (pointer,) = pointers(api().post(BATCH, {"findings": body}))
    assert pointer.startswith("/findings/1")
    assert listed(api()) == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"findings": []}, "/findings"),
        ({"findings": {"0": {}}}, "/findings"),
        ({"findings": [None]}, "/findings/0"),
        ({"findings": [{}] * 1001}, "/findings"),
    ],
)
def test_a_batch_that_is_none_is_refused(api: ApiOf, body: dict[str, Any], pointer: str) -> None:
    assert pointer in pointers(api().post(BATCH, body))


def test_every_finding_of_a_batch_that_is_wrong_is_named(api: ApiOf) -> None:
    session_id = make_session(api())["id"]
    body = [finding_of(session_id, severity="bad", rule=7), finding_of(session_id), {}]
    found = pointers(api().post(BATCH, {"findings": body}))
    assert set(found) == {
        "/findings/0/severity",
        "/findings/0/rule",
        "/findings/2/session_id",
        "/findings/2/rule",
        "/findings/2/severity",
        "/findings/2/title",
    }
