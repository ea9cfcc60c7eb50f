"""A thousand findings at once: all of them or none."""

from typing import Any

import pytest
from sqlalchemy import Engine

from tests.api.findings.feed import BATCH, events, listed
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import NOBODY, finding_of, make_session, pointers, refused


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
        ({}, "/findings"),
        ({"findings": []}, "/findings"),
        ({"findings": None}, "/findings"),
        ({"findings": {"0": {}}}, "/findings"),
        ({"findings": [7]}, "/findings/0"),
        ({"findings": [None]}, "/findings/0"),
        ({"findings": [{}] * 1001}, "/findings"),
        ({"findings": [{}], "all": True}, "/all"),
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
