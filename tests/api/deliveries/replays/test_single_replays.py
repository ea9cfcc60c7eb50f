"""A replay of one delivery, and a test event: sent at once, to one webhook."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from app.core.delivery.lanes import lanes
from app.database import Database
from tests.api.deliveries.replays.single import fire, replay
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import refused
from tests.support.callers.sending import Worker, books, history, make_findings, make_webhook


def test_a_test_and_a_replay_make_the_lane_due_at_once(
    api: ApiOf,
    webhook: dict[str, Any],
    failed: dict[str, Any],
    database: Database,
    tenant: FreshTenant,
    worker: Worker,
) -> None:
    acts: list[Callable[[], Any]] = [
        lambda: fire(api(), webhook),
        lambda: replay(api(), failed),
    ]
    for act in acts:
        worker.run("UPDATE lanes SET due_at = clock_timestamp() + interval '1 h'")
        act()
        with database.transaction(tenant.id) as session:
            due = session.scalar(text("SELECT due_at <= clock_timestamp() FROM lanes"))
        assert due


def test_a_replay_is_a_new_delivery_of_the_same_event_with_the_same_number(
    api: ApiOf, webhook: dict[str, Any], failed: dict[str, Any], worker: Worker
) -> None:
    answer = replay(api(), failed)

    assert answer.status_code == 202
    again = answer.json
    assert again["id"] != failed["id"]
    assert (again["kind"], again["replay_of"]) == ("replay", failed["id"])
    assert (again["event_id"], again["sequence"]) == (failed["event_id"], failed["sequence"])
    _, (claimed,) = worker.claim(webhook)
    event = api().get(f"/v1/events/{failed['event_id']}").json
    assert claimed.sequence == 1
    assert (
        api().get(f"/v1/webhooks/{webhook['id']}/deliveries/{again['id']}").json["payload"]
        == (event["payload"])
    )


def test_an_event_tells_of_its_first_delivery_and_each_replay_to_each_webhook(
    api: ApiOf, webhook: dict[str, Any], failed: dict[str, Any]
) -> None:
    other = make_webhook(api())
    again = [replay(api(), failed).json["id"] for _ in range(2)]

    event_id = failed["event_id"]
    (decided,) = api().get(f"/v1/events/{event_id}").json["webhooks"]
    assert [each["id"] for each in decided["deliveries"]] == [failed["id"], *again]
    path = f"/v1/webhooks/{{}}/decisions?event_id={event_id}"
    mine = api().get(path.format(webhook["id"])).json
    assert [each["id"] for each in mine["deliveries"]] == [failed["id"], *again]
    assert api().get(path.format(other["id"])).json["deliveries"] == []


def test_a_replay_goes_before_live_events_and_through_a_pause(
    api: ApiOf, webhook: dict[str, Any], failed: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 6)
    worker.send(webhook, 503, (0.0, 0.0))
    assert worker.send(webhook) == 0

    replay(api(), failed)

    _, claimed = worker.claim(webhook)
    assert [row.kind for row in claimed] == ["replay"]


@pytest.mark.parametrize("status", [200, 500])
def test_any_delivery_can_be_replayed_whatever_became_of_it(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, status: int
) -> None:
    make_findings(api(), 1)
    worker.send(webhook, status)
    (row,) = history(api(), webhook)

    assert replay(api(), row).status_code == 202
    worker.send(webhook, 200)

    (first,) = history(api(), webhook, "status=succeeded,failed&limit=1")
    assert (first["replay_of"], first["status"]) == (row["id"], "succeeded")


def test_a_test_that_is_replayed_is_a_replay_without_a_number(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    first = fire(api(), webhook).json
    worker.send(webhook, 500)

    second = replay(api(), first).json

    assert (second["kind"], second["sequence"]) == ("replay", None)
    assert second["replay_of"] == first["id"]


def test_a_delivery_that_has_no_number_yet_gets_one_before_it_is_replayed(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    make_findings(api(), 2)
    newest, oldest = history(api(), webhook)
    assert (newest["sequence"], oldest["sequence"]) == (None, None)

    assert replay(api(), newest).json["sequence"] == 2


def test_behind_a_long_backlog_there_is_nothing_to_repeat_yet(
    api: ApiOf, webhook: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "NUMBER_AT_ONCE", 5)
    make_findings(api(), 6)
    newest = history(api(), webhook, "limit=1")[0]

    problem = refused(replay(api(), newest), 409, "conflict")

    assert "first attempt" in problem["detail"]
    assert books(api(), webhook)["replays"]["accepted"] == 0


def test_a_replay_of_an_event_that_is_kept_no_longer_is_refused(
    api: ApiOf, webhook: dict[str, Any], failed: dict[str, Any], worker: Worker
) -> None:
    worker.run("DELETE FROM stored_events")

    problem = refused(replay(api(), failed), 409, "conflict")

    assert "older than the history kept" in problem["detail"]
    assert books(api(), webhook)["replays"]["accepted"] == 0
    assert api().get("/v1/audit?action=delivery.replay").json["data"] == []


def test_a_replay_is_audited(api: ApiOf, webhook: dict[str, Any], failed: dict[str, Any]) -> None:
    again = replay(api(), failed).json

    (entry,) = api().get("/v1/audit?action=delivery.replay").json["data"]
    assert entry["target"] == {"type": "delivery", "id": failed["id"]}
    assert entry["details"] == {
        "webhook_id": webhook["id"],
        "event_id": failed["event_id"],
        "replay_id": again["id"],
    }


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
