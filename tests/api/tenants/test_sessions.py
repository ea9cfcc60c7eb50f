"""Sessions over HTTP: opened once, completed once, seen by those who may."""

from typing import Any

import pytest

from tests.support.callers.api import Api, ApiOf
from tests.support.callers.making import (
    NOBODY,
    finding_of,
    make_agent,
    make_finding,
    make_session,
    pointers,
    refused,
    shifted,
)
from tests.support.faults import at_once

DONE = {"outcome": "succeeded"}


def complete(api: Api, session: dict[str, Any], body: dict[str, Any] | None = None) -> Any:
    return api.post(f"/v1/sessions/{session['id']}/complete", body or DONE)


def listed(api: Api, query: str = "") -> list[str]:
    return [session["id"] for session in api.get(f"/v1/sessions?{query}").json["data"]]


def completions(api: Api) -> list[dict[str, Any]]:
    """Return the events of completed sessions."""
    return list(api.get("/v1/events?type=session.completed").json["data"])


def test_a_session_is_answered_alike_when_opened_read_and_listed(api: ApiOf) -> None:
    agent = make_agent(api())
    fields = {"title": "Invoices of May", "metadata": {"batch": 5}, "principal": "bob"}
    made = make_session(api(), agent["id"], **fields)
    assert made.items() >= (fields | {"agent_id": agent["id"], "status": "open"}).items()
    assert (made["outcome"], made["summary"], made["completed_at"]) == (None, None, None)
    assert api().get(f"/v1/sessions/{made['id']}").json == made
    assert api().get("/v1/sessions").json["data"] == [made]


def test_completing_sets_outcome_and_summary_and_emits_the_session_as_its_get_answers_it(
    api: ApiOf,
) -> None:
    session = make_session(api(), metadata={"é": 1.0})
    answer = complete(api(), session, {"outcome": "failed", "summary": "out of invoices"})
    assert answer.status_code == 200
    changed = {name for name in session if session[name] != answer.json[name]}
    assert changed == {"status", "outcome", "summary", "completed_at"}
    assert answer.json["completed_at"] > session["created_at"]
    (event,) = completions(api())
    assert event["data"] == answer.json == api().get(f"/v1/sessions/{session['id']}").json
    assert event["timestamp"] == answer.json["completed_at"]


def test_a_second_completion_is_refused_and_changes_nothing(api: ApiOf) -> None:
    session = make_session(api())
    first = complete(api(), session).json
    problem = refused(complete(api(), session, {"outcome": "failed"}), 409, "session-completed")
    assert "succeeded" in problem["detail"]
    assert api().get(f"/v1/sessions/{session['id']}").json == first
    assert len(completions(api())) == 1


def test_of_many_completions_at_once_exactly_one_wins(api: ApiOf) -> None:
    session = make_session(api())
    failed = {"outcome": "failed"}
    answers = at_once(8, lambda each: complete(api(), session, failed | {"summary": str(each)}))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
    (won,) = (answer.json for answer in answers if answer.status_code == 200)
    assert api().get(f"/v1/sessions/{session['id']}").json == won
    assert [e["data"] for e in completions(api())] == [won]


def test_a_wrong_completion_is_refused_and_the_session_stays_open(api: ApiOf) -> None:
    session = make_session(api())
    assert pointers(complete(api(), session, {"outcome": "abandoned"})) == ["/outcome"]
    assert api().get(f"/v1/sessions/{session['id']}").json == session


def test_the_largest_session_can_still_be_completed(api: ApiOf) -> None:
    session = make_session(
        api(),
        principal="\u0001" * 200,
        title="\u0001" * 500,
        metadata={"x": "\u0001" * 10_000},
    )
    answer = complete(api(), session, {"outcome": "failed", "summary": "\u0001" * 10_000})
    assert answer.status_code == 200


def test_filters_are_combined(api: ApiOf) -> None:
    one, other = make_agent(api())["id"], make_agent(api())["id"]
    a = make_session(api(), one, principal="alice")
    b = make_session(api(), one, principal="bob")
    c = make_session(api(), other, principal="alice")
    complete(api(), b)
    a, b, c = a["id"], b["id"], c["id"]
    assert listed(api()) == [c, b, a]
    assert listed(api(), f"agent_id={one}") == [b, a]
    assert listed(api(), "principal=alice") == [c, a]
    assert listed(api(), "status=completed") == [b]
    assert listed(api(), f"status=open&agent_id={one}&principal=alice") == [a]
    assert listed(api(), f"agent_id={other}&principal=bob") == []
    assert listed(api(), f"agent_id=agt_{NOBODY}") == []


def test_since_includes_its_moment_and_until_does_not(api: ApiOf) -> None:
    made = [make_session(api()) for _ in range(3)]
    old, middle, new = (session["id"] for session in made)
    at = made[1]["created_at"]
    assert listed(api(), f"since={shifted(at, 0)}") == [new, middle]
    assert listed(api(), f"until={shifted(at, 0)}") == [old]
    assert listed(api(), f"since={shifted(at, 1)}") == [new]
    assert listed(api(), f"until={shifted(at, 1)}") == [middle, old]
    assert listed(api(), f"since={shifted(at, 0)}&until={shifted(at, 1)}") == [middle]
    assert listed(api(), f"since={shifted(at, 1)}&until={shifted(at, 0)}") == []


@pytest.mark.parametrize(
    ("moment", "empty", "full"),
    [
        ("0001-01-01T00:00:00Z", "until", "since"),
        ("1969-12-31T23:59:59.999999Z", "until", "since"),
        ("9999-12-31T23:59:59.999999Z", "since", "until"),
        ("9999-12-31T23:59:59.9999Z", "since", "until"),
    ],
)
def test_times_before_and_behind_all_ids_are_times_like_any(
    api: ApiOf, moment: str, empty: str, full: str
) -> None:
    session = make_session(api())
    assert listed(api(), f"{full}={moment}") == [session["id"]]
    assert listed(api(), f"{empty}={moment}") == []


def test_a_completed_session_still_takes_findings(api: ApiOf) -> None:
    session = make_session(api())
    complete(api(), session)
    made = make_finding(api(), session["id"])
    batch = api().post("/v1/findings/batch", {"findings": [finding_of(session["id"])]})
    assert batch.status_code == 201
    assert made["session_id"] == session["id"]
