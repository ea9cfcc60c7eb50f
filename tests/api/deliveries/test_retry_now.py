"""Retry now and hold, as callers ask for them: what comes forward, what is refused, the audit."""

from typing import Any

import pytest

from tests.support.callers.api import ApiOf
from tests.support.callers.making import pointers, refused
from tests.support.callers.sending import (
    TWO_TRIES,
    Worker,
    books,
    history,
    make_findings,
    make_webhook,
)


@pytest.fixture
def waiting(api: ApiOf, worker: Worker) -> dict[str, Any]:
    """Make a webhook with three deliveries that wait for five minutes, and pause it."""
    webhook = make_webhook(api())
    make_findings(api(), 3)
    worker.send(webhook, 500, TWO_TRIES)
    paused = "paused_until = clock_timestamp() + interval '1 h', pause_level = 1"
    worker.run(f"UPDATE lanes SET {paused}")
    return webhook


def path(webhook: dict[str, Any]) -> str:
    return f"/v1/webhooks/{webhook['id']}"


def test_what_waits_goes_now_and_no_attempt_of_its_schedule_is_spent(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    assert worker.send(waiting, 200) == 0

    answer = api().post(f"{path(waiting)}/retry-now")

    assert (answer.status_code, answer.json) == (202, {"count": 3})
    assert api().get(path(waiting)).json["health"]["paused_until"] is None
    _, claimed = worker.claim(waiting)
    assert [(row.attempt, row.scheduled_attempt) for row in claimed] == [(2, 1)] * 3
    assert api().post(f"{path(waiting)}/retry-now").json == {"count": 0}
    (entry,) = api().get("/v1/audit?action=deliveries.retry_now").json["data"]
    assert (entry["target"]["id"], entry["details"]) == (waiting["id"], {"count": 3, "rate": None})


def test_a_rate_spreads_it(api: ApiOf, waiting: dict[str, Any], worker: Worker) -> None:
    answer = api().post(f"{path(waiting)}/retry-now", {"rate": 1})

    assert answer.json == {"count": 3}
    assert len(worker.claim(waiting)[1]) == 1
    waits = sorted(row["next_attempt_at"] or "" for row in history(api(), waiting))
    assert len(set(waits)) == 3


def test_one_delivery_goes_before_the_others_and_past_a_pause(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    row = history(api(), waiting)[0]
    one = f"{path(waiting)}/deliveries/{row['id']}/retry-now"

    assert api().post(one).json == {"count": 1}

    _, claimed = worker.claim(waiting)
    assert [f"dlv_{each.id.hex}" for each in claimed] == [row["id"]]
    refused(api().post(one), 409, "conflict")
    assert len(api().get("/v1/audit?action=delivery.retry_now").json["data"]) == 1


def test_an_attempt_that_is_asked_for_often_is_counted_once(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    one = f"{path(waiting)}/deliveries/{history(api(), waiting)[0]['id']}/retry-now"

    for rate in (1, 2, 1, 2):
        assert api().post(f"{path(waiting)}/retry-now", {"rate": rate}).status_code == 202
        assert api().post(one).json == {"count": 1}

    worker.run("UPDATE deliveries SET next_attempt_at = clock_timestamp()")
    _, claimed = worker.claim(waiting)
    assert [(row.attempt, row.scheduled_attempt) for row in claimed] == [(2, 1)] * 3
    assert {row.unscheduled for row in claimed} == {1}


def test_what_an_earlier_release_counted_too_often_keeps_a_place_in_the_schedule(
    waiting: dict[str, Any], worker: Worker
) -> None:
    worker.run("UPDATE deliveries SET next_attempt_at = clock_timestamp(), unscheduled = 13")
    worker.run("UPDATE lanes SET paused_until = NULL")

    _, claimed = worker.claim(waiting)

    assert {row.scheduled_attempt for row in claimed} == {1}


def test_what_does_not_wait_is_not_brought_forward(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 1)
    pending = history(api(), waiting)[0]
    refused(api().post(f"{path(waiting)}/deliveries/{pending['id']}/retry-now"), 409, "conflict")
    assert pointers(api().post(f"{path(waiting)}/retry-now", {"rate": 0})) == ["/rate"]
    api().patch(path(waiting), {"status": "disabled"})
    refused(api().post(f"{path(waiting)}/retry-now"), 409, "webhook-disabled")
    assert books(api(), waiting)["balanced"]


def test_holding_and_releasing_are_shown_and_audited_once_each(
    api: ApiOf, waiting: dict[str, Any]
) -> None:
    assert (waiting["held"], waiting["held_since"]) == (False, None)

    for held in (True, True, False, False):
        shown = api().patch(path(waiting), {"held": held}).json
        assert shown["held"] is held
        assert (shown["held_since"] is None) is not held

    actions = [row["action"] for row in api().get("/v1/audit").json["data"]]
    assert actions.count("webhook.hold") == actions.count("webhook.release") == 1
    assert pointers(api().patch(path(waiting), {"held": None})) == ["/held"]


def test_a_held_webhook_keeps_what_a_replay_sends_and_its_canary(
    api: ApiOf, worker: Worker
) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 2)
    worker.send(webhook, 400)
    api().patch(path(webhook), {"held": True})
    job = api().post(f"{path(webhook)}/replay", {"canary": 1}).json
    worker.finish(job)

    assert worker.send(webhook, 200) == 0
    api().patch(path(webhook), {"held": False})
    assert worker.send(webhook, 200) == 1
    assert books(api(), webhook)["balanced"]
