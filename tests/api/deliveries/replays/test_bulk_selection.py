"""Deliveries that a bulk replay of one webhook covers, and those it leaves out; its audit."""

from typing import Any

from tests.api.deliveries.replays.bulk import (
    disable,
    enable,
    fail,
    of,
    preview,
    progress,
    read,
    replays,
    start,
)
from tests.support.callers.api import ApiOf
from tests.support.callers.making import refused
from tests.support.callers.sending import Worker, books, history, make_findings, make_webhook


def test_what_failed_is_sent_again_with_its_number(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 3)
    make_findings(api(), 1)
    worker.send(webhook, 200)
    assert preview(api(), webhook) == 3
    assert replays(api(), webhook) == []

    job = start(api(), of(webhook))
    worker.finish(job)

    assert progress(api(), job) == (3, 3, 0)
    assert read(api(), job)["status"] == "running"
    made = replays(api(), webhook)
    failed = history(api(), webhook, "status=failed")
    assert {row["replay_of"] for row in made} == {row["id"] for row in failed}
    assert {row["sequence"] for row in made} == {1, 2, 3}
    assert {row["job_id"] for row in made} == {job["id"]}
    worker.send(webhook, 200)
    worker.count_again(job)
    ended = read(api(), job)
    assert (ended["status"], ended["progress"]["succeeded"]) == ("succeeded", 3)
    kept = books(api(), webhook)
    assert (kept["replays"]["accepted"], kept["replays"]["succeeded"]) == (3, 3)
    assert kept["balanced"]


def test_what_has_arrived_since_or_is_waiting_already_is_left_out(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 4)
    rows = history(api(), webhook)
    path = f"/v1/webhooks/{webhook['id']}/deliveries"
    api().post(f"{path}/{rows[0]['id']}/replay")
    worker.send(webhook, 200)
    api().post(f"{path}/{rows[1]['id']}/replay")
    worker.send(webhook, 400)
    api().post(f"{path}/{rows[2]['id']}/replay")

    assert preview(api(), webhook) == 2
    job = start(api(), of(webhook))
    worker.finish(job)

    assert progress(api(), job) == (2, 2, 0)
    made = {row["replay_of"] for row in replays(api(), webhook) if row["job_id"]}
    assert made == {rows[1]["id"], rows[3]["id"]}
    assert preview(api(), webhook) == 0


def test_what_settles_while_the_job_runs_is_skipped(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 3)
    first = history(api(), webhook)[0]
    job = start(api(), of(webhook))

    api().post(f"/v1/webhooks/{webhook['id']}/deliveries/{first['id']}/replay")
    fail(api(), worker, webhook, 2)
    api().post(f"/v1/webhooks/{webhook['id']}/deliveries/{first['id']}/replay")
    worker.finish(job)

    assert progress(api(), job) == (3, 2, 1)


def test_cancelled_deliveries_are_covered_when_asked_for(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 1)
    make_findings(api(), 2)
    disable(api(), webhook)
    enable(api(), webhook)

    assert preview(api(), webhook) == 1
    assert preview(api(), webhook, status="cancelled") == 2
    assert preview(api(), webhook, status=["failed", "cancelled"]) == 3
    job = start(api(), of(webhook), status=["cancelled"])
    worker.finish(job)

    assert progress(api(), job) == (2, 2, 0)
    assert {row["sequence"] for row in replays(api(), webhook)} == {2, 3}


def test_what_happened_while_disabled_is_made_a_delivery_by_skipped(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    other = make_webhook(api())
    disable(api(), webhook)
    findings = make_findings(api(), 3)
    assert preview(api(), webhook, status="skipped") == 0
    enable(api(), webhook)
    make_findings(api(), 1)
    assert preview(api(), webhook, status="skipped") == 3
    assert preview(api(), other, status="skipped") == 0

    job = start(api(), of(webhook), status="skipped")
    worker.finish(job)

    made = replays(api(), webhook)
    assert progress(api(), job) == (3, 3, 0)
    assert {(row["sequence"], row["replay_of"]) for row in made} == {(None, None)}
    sent = {
        api().get(f"/v1/events/{row['event_id']}").json["payload"]["data"]["id"] for row in made
    }
    assert sent == {each["id"] for each in findings}
    worker.send(webhook, 400)
    assert preview(api(), webhook, status="skipped") == 3
    assert books(api(), webhook)["balanced"]


def test_since_and_until_bound_what_is_covered(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    for _ in range(3):
        fail(api(), worker, webhook, 1)
    second = history(api(), webhook)[1]["created_at"]
    third = history(api(), webhook)[0]["created_at"]

    assert preview(api(), webhook, since=second) == 2
    assert preview(api(), webhook, until=second) == 1
    assert preview(api(), webhook, since=second, until=third) == 1
    assert preview(api(), webhook, since="9999-12-31T23:59:59Z") == 0
    assert preview(api(), webhook, since="0001-01-01T00:00:00Z") == 3
    job = start(api(), of(webhook), since=second, until=third)
    worker.finish(job)
    assert [row["sequence"] for row in replays(api(), webhook)] == [2]


def test_tests_and_other_webhooks_are_not_covered(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    other = make_webhook(api())
    fail(api(), worker, other, 2)
    worker.send(webhook, 200)
    api().post(f"/v1/webhooks/{webhook['id']}/test")
    worker.send(webhook, 400)

    assert preview(api(), webhook, status=["failed", "cancelled", "skipped"]) == 0


def test_live_events_go_before_bulk_replays(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    worker.finish(start(api(), of(webhook)))
    make_findings(api(), 2)

    _, claimed = worker.claim(webhook)

    assert [row.kind for row in claimed] == ["event", "event", "replay", "replay"]


def test_what_waits_is_left_out_of_a_webhook_of_many_lanes_too(api: ApiOf) -> None:
    webhook = make_webhook(api(), lanes=16)
    make_findings(api(), 3)
    wanted = {"ids": [row["id"] for row in history(api(), webhook)], "dry_run": True}
    shown = api().post(f"/v1/webhooks/{webhook['id']}/replay", wanted).json
    assert (shown["count"], shown["left_out"]["already_waiting"]) == (0, 3)


def test_a_bulk_replay_is_audited_and_a_preview_is_not(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    preview(api(), webhook)
    job = start(api(), of(webhook), status="failed", rate=7, until="2100-01-01T00:00:00Z")

    (entry,) = api().get("/v1/audit?action=deliveries.replay").json["data"]
    assert entry["target"] == {"type": "webhook", "id": webhook["id"]}
    assert entry["details"] == {
        "job_id": job["id"],
        "count": 2,
        "status": ["failed"],
        "since": None,
        "until": "2100-01-01T00:00:00.000000Z",
        "rate": 7,
    }


def test_a_disabled_webhook_can_be_previewed_and_not_replayed_to(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    disable(api(), webhook)

    path = f"/v1/webhooks/{webhook['id']}/replay"
    shown = api().post(path, {"dry_run": True}).json
    assert (shown["count"], shown["left_out"]["not_sending"]) == (0, 2)
    answer = api().post(path, {})
    refused(answer, 409, "webhook-disabled")


def test_a_dry_run_refuses_the_idempotency_key_that_the_replay_itself_would(api: ApiOf) -> None:
    for dry_run in (True, False):
        answer = api().post(
            "/v1/deliveries/replay", {"dry_run": dry_run}, headers={"Idempotency-Key": "k" * 256}
        )
        refused(answer, 422, "validation-failed")
        assert answer.json["errors"][0]["pointer"] == "/Idempotency-Key"
