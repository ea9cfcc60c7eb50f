"""Groups of failures: what is in one, what has left it, and what its name selects."""

from typing import Any

from app.core.delivery.history import failure_groups
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import (
    NOBODY,
    make_finding,
    make_record,
    make_session,
)
from tests.support.callers.sending import TWO_TRIES, Worker, history, make_findings, make_webhook

PATH = "/v1/deliveries/groups"


def groups(api: Api, query: str = "") -> list[dict[str, Any]]:
    answer = api.get(f"{PATH}?{query}")
    assert answer.status_code == 200, answer.json
    assert (answer.json["window"], answer.json["complete"]) == (failure_groups.WINDOW, True)
    found: list[dict[str, Any]] = answer.json["data"]
    return found


def named(api: Api, group: dict[str, Any], query: str = "") -> list[str]:
    return [row["id"] for row in api.rows(f"/v1/deliveries?group={group['group']}{query}")]


def fail(api: Api, worker: Worker, webhook: dict[str, Any], *answers: tuple[Any, str]) -> None:
    for status, error in answers:
        make_findings(api, 1)
        worker.send(webhook, status, error=error)
        worker.unpause()


def test_failures_are_grouped_by_webhook_outcome_status_and_normal_error(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, *((None, f"no answer from 10.0.0.{n}") for n in (1, 2, 3)))
    fail(api(), worker, webhook, (500, "a"), (500, "a"), (503, "a"), (200, ""))
    other = make_webhook(api())
    fail(api(), worker, other, (503, "a"))

    found = groups(api())

    assert [
        (each["webhook_id"], each["outcome"], each["status_code"], each["error"])
        for each in found[:2]
    ] == [
        (webhook["id"], "timeout", None, "no answer from <address>"),
        (webhook["id"], "failed", 500, "a"),
    ]
    assert [each["count"] for each in found] == [3, 2, 1, 1]
    assert {each["webhook_id"] for each in found[2:]} == {webhook["id"], other["id"]}
    assert len({each["group"] for each in found}) == 4
    first = found[0]
    members = named(api(), first)
    assert first["example_id"] == members[0]
    assert len(members) == 3
    assert first["first_at"] < first["last_at"]


def test_what_waits_to_be_tried_again_is_in_the_group_of_what_failed_like_it(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, (500, "a"))
    make_findings(api(), 1)
    worker.send(webhook, 500, TWO_TRIES, error="a")

    # The test's worker names an outcome by the status that follows, so the two differ in it.
    found = groups(api())
    assert [each["count"] for each in found] == [1, 1]
    assert len(groups(api(), "status=failed")) == len(groups(api(), "status=retrying")) == 1
    (waiting,) = groups(api(), "status=retrying")
    assert len(named(api(), waiting)) == len(named(api(), waiting, "&status=retrying")) == 1
    assert named(api(), waiting, "&status=failed") == named(api(), waiting, "&status=pending") == []


def test_an_event_counts_by_its_replay_once_it_has_one(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, (500, "a"), (500, "a"), (500, "a"))
    rows = history(api(), webhook)
    path = f"/v1/webhooks/{webhook['id']}/deliveries"
    (before,) = groups(api())
    assert before["count"] == 3

    for row in rows[:2]:
        api().post(f"{path}/{row['id']}/replay")
    assert [each["count"] for each in groups(api())] == [1]
    worker.send(webhook, 200, limit=1)
    worker.send(webhook, 503, error="b")

    found = groups(api())
    assert {(each["status_code"], each["count"]) for each in found} == {(500, 1), (503, 1)}
    assert [len(named(api(), each)) for each in found] == [1, 1]
    assert named(api(), before) == [rows[2]["id"]]


def test_tests_and_cancelled_deliveries_are_in_no_group(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    api().post(f"/v1/webhooks/{webhook['id']}/test")
    worker.send(webhook, 400)
    make_findings(api(), 1)
    worker.send(webhook, 500, TWO_TRIES)
    api().patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})

    assert groups(api()) == []


def test_filters_narrow_what_is_grouped(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, (500, "a"), (None, "b"))
    newest = history(api(), webhook)[0]

    for query, codes in (
        ("outcome=timeout", [None]),
        ("status_code=500", [500]),
        (f"since={newest['created_at']}", [None]),
        (f"until={newest['created_at']}", [500]),
        (f"webhook_id={webhook['id']}", [500, None]),
        (f"webhook_id=whk_{NOBODY}", []),
        ("event_type=webhook.test", []),
        ("event_type=finding.created&status=failed", [500, None]),
        (f"job_id=job_{NOBODY}", []),
    ):
        assert {each["status_code"] for each in groups(api(), query)} == set(codes), query


def test_what_failed_for_a_session_a_record_or_an_event_is_grouped(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    session, other = make_session(api()), make_session(api())
    record = make_record(api(), session["id"])
    make_finding(api(), session["id"], record_id=record["id"])
    worker.send(webhook, 500, error="a")
    worker.unpause()
    make_finding(api(), other["id"])
    worker.send(webhook, 502, error="b")
    event = history(api(), webhook)[0]["event_id"]

    for query, codes in (
        (f"session_id={session['id']}", [500]),
        (f"session_id={other['id']}", [502]),
        (f"record_id={record['id']}", [500]),
        (f"event_id={event}", [502]),
        (f"event_id={event}&session_id={session['id']}", []),
        (f"session_id={session['id']}&webhook_id=whk_{NOBODY}", []),
        (f"session_id=ses_{NOBODY}", []),
    ):
        assert [each["status_code"] for each in groups(api(), query)] == codes, query


def test_more_failures_than_are_read_are_said_to_be_more(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, (500, "a"))
    worker.copy("failed", failure_groups.WINDOW)

    answer = api().get(PATH).json

    assert answer["complete"] is False
    assert [each["count"] for each in answer["data"]] == [failure_groups.WINDOW]


def test_another_tenant_s_failures_are_in_no_group(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, other_tenant: FreshTenant
) -> None:
    fail(api(), worker, webhook, (500, "a"))
    (found,) = groups(api())

    stranger = api(other_tenant.root_key)
    assert groups(stranger) == []
    assert named(stranger, found) == []
