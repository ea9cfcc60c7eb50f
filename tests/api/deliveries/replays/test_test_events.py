"""Test events go to one webhook at once, also while it is paused."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.api.deliveries.replays.single import fire, replay
from tests.support.callers.api import ApiOf
from tests.support.callers.making import refused
from tests.support.callers.sending import Worker, books, history, make_findings, make_webhook


def test_a_test_is_sent_whatever_event_types_says(api: ApiOf, worker: Worker) -> None:
    webhook = make_webhook(api(), event_types=["session.completed"])

    answer = fire(api(), webhook)

    assert answer.status_code == 202
    row = answer.json
    assert (row["kind"], row["event_type"]) == ("test", "webhook.test")
    assert (row["status"], row["sequence"]) == ("pending", None)
    assert worker.send(webhook, 200) == 1
    (row,) = history(api(), webhook)
    assert row["status"] == "succeeded"


def test_a_test_goes_to_its_own_webhook_alone(api: ApiOf, webhook: dict[str, Any]) -> None:
    other = make_webhook(api())

    event_id = fire(api(), webhook).json["event_id"]

    assert history(api(), other) == []
    (decided,) = api().get(f"/v1/events/{event_id}").json["webhooks"]
    assert decided["webhook_id"] == webhook["id"]
    assert [each["kind"] for each in decided["deliveries"]] == ["test"]


def test_a_test_goes_out_even_while_the_webhook_is_paused(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 6)
    worker.send(webhook, 503, (0.0, 0.0))
    assert worker.send(webhook) == 0

    fire(api(), webhook)

    _, claimed = worker.claim(webhook)
    assert [row.kind for row in claimed] == ["test"]


def test_a_disabled_webhook_is_neither_tested_nor_replayed_to(
    api: ApiOf, webhook: dict[str, Any], failed: dict[str, Any]
) -> None:
    api().patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})

    problem = refused(fire(api(), webhook), 409, "webhook-disabled")
    refused(replay(api(), failed), 409, "webhook-disabled")

    assert "enabled" in problem["detail"]
    assert len(history(api(), webhook)) == 1
    assert books(api(), webhook)["tests"]["accepted"] == 0


def test_many_tests_at_once_all_count(api: ApiOf, webhook: dict[str, Any]) -> None:
    callers = [api() for _ in range(8)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: fire(one, webhook), callers))

    assert {answer.status_code for answer in answers} == {202}
    assert books(api(), webhook)["tests"]["accepted"] == 8
    assert books(api(), webhook)["balanced"]
