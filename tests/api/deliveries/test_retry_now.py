"""Retry now and hold, as callers ask for them: what comes forward, what is refused, the audit."""

from typing import Any

import pytest

from tests.support.callers.api import Api, ApiOf
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


def job_of(answer: Any) -> dict[str, Any]:
    """Return the job that a request to send all that waits has begun."""
    assert answer.status_code == 202, answer.json
    return {"id": answer.json["job_id"]}


def progress_of(api: Api, job: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = api.get(f"/v1/jobs/{job['id']}").json["progress"]
    return found


def test_what_waits_goes_now_and_no_attempt_of_its_schedule_is_spent(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    assert worker.send(waiting, 200) == 0

    answer = api().post(f"{path(waiting)}/retry-now")

    assert (answer.status_code, answer.json["count"]) == (202, 3)
    worker.finish(job_of(answer))
    assert api().get(path(waiting)).json["health"]["paused_until"] is None
    _, claimed = worker.claim(waiting)
    assert [(row.attempt, row.scheduled_attempt) for row in claimed] == [(2, 1)] * 3
    again = api().post(f"{path(waiting)}/retry-now").json
    assert again["count"] == 0
    entries = api().get("/v1/audit?action=deliveries.retry_now").json["data"]
    assert [entry["target"]["id"] for entry in entries] == [waiting["id"]] * 2
    assert entries[1]["details"] == {**answer.json, "rate": None}


def test_a_rate_spreads_what_waits_for_its_first_attempt_too(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 3)

    answer = api().post(f"{path(waiting)}/retry-now", {"rate": 2})

    assert answer.json["count"] == 6
    job = job_of(answer)
    for tried in (2, 4, 6):
        worker.count_again(job)
        assert worker.send(waiting, 200) == 2
        assert worker.send(waiting, 200) == 0
        shown = progress_of(api(), job)
        assert shown["waiting"] >= 6 - tried
    worker.count_again(job)
    assert api().get(f"/v1/jobs/{job['id']}").json["status"] == "succeeded"
    assert progress_of(api(), job) == {
        "selected": 6,
        "sent": 6,
        "succeeded": 6,
        "failed": 0,
        "cancelled": 0,
        "retrying": 0,
        "waiting": 0,
    }


def test_its_job_tells_what_became_of_each_and_ends_when_each_was_tried(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    job = job_of(api().post(f"{path(waiting)}/retry-now"))
    worker.finish(job)
    make_findings(api(), 1)
    worker.send(waiting, 200, limit=2)
    worker.send(waiting, 400, limit=1)
    worker.count_again(job)
    assert api().get(f"/v1/jobs/{job['id']}").json["status"] == "running"
    assert progress_of(api(), job)["waiting"] == 2

    worker.send(waiting, 500, (0.0, 300.0, 300.0))
    worker.count_again(job)

    assert api().get(f"/v1/jobs/{job['id']}").json["status"] == "succeeded"
    shown = progress_of(api(), job)
    assert (shown["succeeded"], shown["failed"], shown["retrying"]) == (2, 1, 2)
    worker.make_due()
    worker.send(waiting, 200)
    assert progress_of(api(), job)["succeeded"] == 4
    (listed,) = api().get("/v1/jobs?kind=retry_now").json["data"]
    assert listed["progress"]["retrying"] == 0
    assert books(api(), waiting)["balanced"]


def test_what_was_committed_after_it_began_makes_no_count_negative(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    job = job_of(api().post(f"{path(waiting)}/retry-now"))
    make_findings(api(), 4)
    # Made before, in a transaction that took longer.
    worker.run("UPDATE open_deliveries SET created_at = created_at - interval '1 h'")

    worker.finish(job)
    shown = progress_of(api(), job)
    assert (shown["selected"], shown["waiting"], shown["sent"], shown["succeeded"]) == (3, 7, 0, 0)

    worker.send(waiting, 500, (0.0, 300.0, 300.0))
    worker.count_again(job)
    shown = progress_of(api(), job)
    assert (shown["retrying"], shown["sent"], shown["succeeded"]) == (7, 3, 0)


def test_a_later_request_takes_the_place_of_one_that_goes_on(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    slow = job_of(api().post(f"{path(waiting)}/retry-now", {"rate": 1}))
    worker.step(slow)

    quick = job_of(api().post(f"{path(waiting)}/retry-now"))

    shown = api().get(f"/v1/jobs/{slow['id']}").json
    assert shown["status"] == "cancelled"
    assert "A later request" in shown["error"]
    refused(api().post(f"/v1/jobs/{slow['id']}/resume"), 409, "job-state")
    worker.finish(quick)
    assert worker.send(waiting, 200) == 3


def test_it_is_cancelled_and_goes_on_and_ends_with_its_webhook(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    job = job_of(api().post(f"{path(waiting)}/retry-now", {"rate": 1}))
    worker.step(job)
    assert api().post(f"/v1/jobs/{job['id']}/cancel").json["status"] == "cancelled"
    assert not worker.step(job)
    assert api().post(f"/v1/jobs/{job['id']}/resume").json["status"] == "queued"
    worker.finish(job)
    assert worker.send(waiting, 200) == 1

    api().patch(path(waiting), {"status": "disabled"})
    worker.count_again(job)

    shown = api().get(f"/v1/jobs/{job['id']}").json
    assert (shown["status"], shown["progress"]["cancelled"]) == ("cancelled", 2)
    assert shown["error"].startswith("The webhook was disabled")


def test_a_held_webhook_is_not_said_to_send(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    api().patch(path(waiting), {"held": True})

    refused(api().post(f"{path(waiting)}/retry-now"), 409, "conflict")

    api().patch(path(waiting), {"held": False})
    job = job_of(api().post(f"{path(waiting)}/retry-now"))
    api().patch(path(waiting), {"held": True})
    worker.finish(job)
    assert worker.send(waiting, 200) == 0
    api().patch(path(waiting), {"held": False})
    worker.count_again(job)
    assert worker.send(waiting, 200) == 3


def test_one_delivery_goes_before_the_others_and_past_a_pause(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    row = history(api(), waiting)[0]
    one = f"{path(waiting)}/deliveries/{row['id']}/retry-now"

    assert api().post(one).json["count"] == 1

    _, claimed = worker.claim(waiting)
    assert [f"dlv_{each.id.hex}" for each in claimed] == [row["id"]]
    refused(api().post(one), 409, "conflict")
    assert len(api().get("/v1/audit?action=delivery.retry_now").json["data"]) == 1


def test_an_attempt_that_is_asked_for_often_is_counted_once(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    one = f"{path(waiting)}/deliveries/{history(api(), waiting)[0]['id']}/retry-now"

    for rate in (1, 2, 1, 2):
        answer = api().post(f"{path(waiting)}/retry-now", {"rate": rate})
        assert answer.status_code == 202
        worker.step(job_of(answer))
        worker.step(job_of(answer))
        assert api().post(one).json["count"] == 1

    worker.run("UPDATE open_deliveries SET next_attempt_at = clock_timestamp()")
    _, claimed = worker.claim(waiting)
    assert [(row.attempt, row.scheduled_attempt) for row in claimed] == [(2, 1)] * 3
    assert {row.unscheduled for row in claimed} == {1}


def test_what_does_not_wait_is_not_brought_forward(
    api: ApiOf, waiting: dict[str, Any], worker: Worker
) -> None:
    worker.unpause()
    make_findings(api(), 1)
    worker.send(waiting, 200)
    arrived = history(api(), waiting)[0]
    refused(api().post(f"{path(waiting)}/deliveries/{arrived['id']}/retry-now"), 409, "conflict")
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
