"""A replay's canary, its stop after failures, and its outcome."""

from typing import Any

import pytest

from tests.api.deliveries.replays.bulk import ALL, dry, fail, made, of, read, start
from tests.support.callers.api import ApiOf
from tests.support.callers.making import refused
from tests.support.callers.sending import TWO_TRIES, Worker, books, make_webhook


def test_the_job_ends_when_none_waits_and_tells_what_became_of_each(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 4, 400)
    job = start(api(), of(webhook))
    worker.finish(job)
    worker.send(webhook, 200, limit=1)
    worker.send(webhook, 400, limit=1)
    worker.send(webhook, 404, limit=1)
    worker.send(webhook, 400, TWO_TRIES)
    worker.count_again(job)

    found = read(api(), job)
    assert found["status"] == "running"
    assert found["progress"] == {
        "selected": 4,
        "sent": 4,
        "skipped": 0,
        "succeeded": 1,
        "failed_same": 1,
        "failed_otherwise": 1,
        "cancelled": 0,
        "waiting": 1,
        "retrying": 1,
    }
    worker.run(
        "UPDATE open_deliveries SET next_attempt_at = clock_timestamp() WHERE status='retrying'"
    )
    worker.send(webhook, 200)
    worker.count_again(job)
    assert read(api(), job)["status"] == "succeeded"
    assert read(api(), job)["progress"]["succeeded"] == 2


def test_a_canary_that_succeeds_is_followed_by_the_rest(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 6)
    job = start(api(), of(webhook), canary=2)
    worker.finish(job)
    assert len(made(api(), job)) == 2

    worker.send(webhook, 200)
    worker.count_again(job)

    assert len(made(api(), job)) == 6
    worker.send(webhook, 200)
    worker.count_again(job)
    assert read(api(), job)["status"] == "succeeded"


@pytest.mark.parametrize("schedule", [(0.0,), TWO_TRIES], ids=["for good", "at first"])
def test_a_canary_that_fails_ends_the_job(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, schedule: tuple[float, ...]
) -> None:
    fail(api(), worker, webhook, 6)
    job = start(api(), of(webhook), canary=3)
    worker.finish(job)
    worker.send(webhook, 200, limit=1)
    worker.send(webhook, 400, schedule, limit=1)
    worker.count_again(job)

    found = read(api(), job)
    assert (found["status"], found["progress"]["sent"]) == ("cancelled", 2)
    assert found["error"].startswith("The canary failed: 1 of ")
    assert [row["status"] for row in made(api(), job)].count("cancelled") == 1
    assert books(api(), webhook)["balanced"]
    assert not worker.step(job)

    api().post(f"/v1/jobs/{job['id']}/resume")
    worker.finish(job)
    assert len(made(api(), job, "&status=pending")) == 4


def test_a_canary_goes_even_to_a_paused_webhook(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    worker.run(
        "UPDATE lanes SET paused_until = clock_timestamp() + interval '1 h', pause_level = 1"
    )
    worker.finish(start(api(), of(webhook), canary=1))

    _, claimed = worker.claim(webhook)

    assert [row.kind for row in claimed] == ["replay"]


def test_a_replay_stops_after_so_many_failures_and_sends_no_more(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 9)
    job = start(api(), of(webhook), stop_after_failures=3)
    worker.finish(job)
    worker.send(webhook, 400, limit=2)
    worker.count_again(job)
    assert read(api(), job)["status"] == "running"
    worker.send(webhook, 400, TWO_TRIES, limit=2)
    worker.count_again(job)

    found = read(api(), job)
    assert (found["status"], found["progress"]["sent"]) == ("cancelled", 4)
    assert found["error"] == "4 of 9 sent have failed. Nothing more was sent."
    assert worker.send(webhook, 200) == 0

    api().post(f"/v1/jobs/{job['id']}/resume")
    worker.finish(job)
    worker.count_again(job)
    assert read(api(), job)["status"] == "running"
    assert worker.send(webhook, 200) == 5
    assert books(api(), webhook)["balanced"]


def test_a_cancelled_replay_leaves_unsent_what_is_not_sent_and_the_books_close(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 5)
    job = start(api(), of(webhook))
    worker.finish(job)
    lane, claimed = worker.claim(webhook, limit=2)

    cancelled = api().post(f"/v1/jobs/{job['id']}/cancel").json

    assert (cancelled["progress"]["sent"], cancelled["progress"]["waiting"]) == (2, 2)
    worker.record(lane, claimed, 200)
    assert worker.send(webhook, 200) == 0
    kept = books(api(), webhook)
    assert (kept["replays"]["succeeded"], kept["replays"]["cancelled"]) == (2, 3)
    assert kept["balanced"]
    assert dry(api(), of(webhook))["count"] == 3


def test_a_replay_goes_on_beside_a_webhook_that_was_disabled_meanwhile(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    other = make_webhook(api())
    fail(api(), worker, webhook, 2)
    worker.send(other, 400)
    job = start(api(), ALL)
    api().patch(f"/v1/webhooks/{other['id']}", {"status": "disabled"})
    worker.finish(job)
    worker.send(webhook, 200)
    worker.count_again(job)

    found = read(api(), job)
    assert found["status"] == "succeeded"
    assert (found["progress"]["sent"], found["progress"]["skipped"]) == (2, 2)


def test_a_replay_that_was_stopped_goes_on_telling_what_became_of_what_it_sent(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 9)
    job = start(api(), of(webhook), canary=5)
    worker.finish(job)
    worker.send(webhook, 400, TWO_TRIES)
    worker.count_again(job)
    found = read(api(), job)
    assert (found["status"], found["progress"]["waiting"]) == ("cancelled", 5)

    worker.make_due()
    worker.send(webhook, 400)

    now = read(api(), job)["progress"]
    assert (now["waiting"], now["retrying"], now["failed_same"]) == (0, 0, 5)
    (listed,) = api().get("/v1/jobs?kind=bulk_replay").json["data"]
    assert listed["progress"] == now


def test_stopping_resuming_and_retrying_leave_audit_entries(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    job = start(api(), of(webhook))
    for verb in ("cancel", "resume"):
        assert api().post(f"/v1/jobs/{job['id']}/{verb}").status_code == 200
        refused(api().post(f"/v1/jobs/{job['id']}/{verb}"), 409, "job-state")
    worker.run("UPDATE jobs SET status = 'dead', finished_at = clock_timestamp()")
    assert api().post(f"/v1/jobs/{job['id']}/retry").status_code == 200

    entries = [e for e in api().get("/v1/audit").json["data"] if e["target"]["type"] == "job"]

    assert [entry["action"] for entry in entries] == ["job.retry", "job.resume", "job.cancel"]
    assert {entry["target"]["id"] for entry in entries} == {job["id"]}
    assert entries[0]["details"] == {"kind": "bulk_replay"}
