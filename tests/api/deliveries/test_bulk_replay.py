"""Bulk replay: what it covers, how it goes on after every way of stopping it, and its refusals."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.core.jobs import steps
from app.core.jobs.steps import JobFailed
from app.core.replay import bulk_replay
from app.database import Database
from app.models import Job
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import NOBODY, make_session, pin_of, pointers, refused
from tests.support.callers.sending import Worker, books, history, make_findings, make_webhook


def start(api: Api, webhook: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = api.post(f"/v1/webhooks/{webhook['id']}/replay", body)
    assert answer.status_code == 202, answer.json
    job: dict[str, Any] = answer.json
    return job


def preview(api: Api, webhook: dict[str, Any], **body: Any) -> int:
    answer = api.post(f"/v1/webhooks/{webhook['id']}/replay", body | {"dry_run": True})
    assert answer.status_code == 200, answer.json
    assert answer.json.keys() == {"count", "oldest", "newest", "left_out", "seconds", "as_of"}
    return int(answer.json["count"])


def read(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/jobs/{job['id']}").json
    return found


def progress(api: Api, job: dict[str, Any]) -> tuple[int, int, int]:
    """Return (selected, sent, skipped)."""
    found = read(api, job)["progress"]
    ended = ("succeeded", "failed_same", "failed_otherwise", "cancelled", "waiting")
    assert found["sent"] == sum(found[name] for name in ended)
    return found["selected"], found["sent"], found["skipped"]


def replays(api: Api, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    rows = history(api, webhook, "limit=200")
    return [row for row in rows if row["kind"] == "replay"]


def fail(api: Api, worker: Worker, webhook: dict[str, Any], count: int) -> None:
    """Make events whose deliveries fail for good."""
    make_findings(api, count)
    worker.send(webhook, 400)


def disable(api: Api, webhook: dict[str, Any]) -> None:
    api.patch(f"/v1/webhooks/{webhook['id']}", {"status": "disabled"})


def enable(api: Api, webhook: dict[str, Any]) -> None:
    api.patch(f"/v1/webhooks/{webhook['id']}", {"status": "enabled"})


# What it covers


def test_what_failed_is_sent_again_with_its_number(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 3)
    make_findings(api(), 1)
    worker.send(webhook, 200)
    assert preview(api(), webhook) == 3
    assert replays(api(), webhook) == []

    job = start(api(), webhook)
    worker.finish(job)

    assert progress(api(), job) == (3, 3, 0)
    assert read(api(), job)["status"] == "running"
    made = replays(api(), webhook)
    failed = history(api(), webhook, "status=failed")
    assert {row["replay_of"] for row in made} == {row["id"] for row in failed}
    assert {row["sequence"] for row in made} == {1, 2, 3}
    assert {row["job_id"] for row in made} == {job["id"]}
    worker.send(webhook, 200)
    worker.look_again(job)
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
    job = start(api(), webhook)
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
    job = start(api(), webhook)

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
    job = start(api(), webhook, status=["cancelled"])
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

    job = start(api(), webhook, status="skipped")
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


def test_all_three_together_are_one_job(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    make_findings(api(), 1)
    disable(api(), webhook)
    make_findings(api(), 2)
    enable(api(), webhook)

    job = start(api(), webhook, status=["skipped", "failed", "cancelled"])
    assert job["progress"]["selected"] == 5
    worker.finish(job)

    assert progress(api(), job) == (5, 5, 0)


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
    job = start(api(), webhook, since=second, until=third)
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
    worker.finish(start(api(), webhook))
    make_findings(api(), 2)

    _, claimed = worker.claim(webhook)

    assert [row.kind for row in claimed] == ["event", "event", "replay", "replay"]


def test_a_job_over_nothing_succeeds(api: ApiOf, webhook: dict[str, Any], worker: Worker) -> None:
    job = start(api(), webhook, status=["failed", "skipped"])
    worker.finish(job)

    assert (read(api(), job)["status"], progress(api(), job)) == ("succeeded", (0, 0, 0))


# How it goes on


def test_more_than_a_step_s_worth_takes_several_steps(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 1000)
    make_findings(api(), 200)
    while worker.send(webhook, 400):
        pass
    job = start(api(), webhook)

    assert worker.step(job)
    assert progress(api(), job) == (1200, 500, 0)
    worker.finish(job)

    assert progress(api(), job) == (1200, 1200, 0)
    assert books(api(), webhook)["replays"]["accepted"] == 1200


def test_a_rate_bounds_each_step_and_spaces_them(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 5)
    job = start(api(), webhook, rate=2)

    assert worker.step(job)
    assert progress(api(), job) == (5, 2, 0)
    waiting = read(api(), job)
    assert waiting["run_at"] > job["run_at"]
    assert not worker.step(job)
    worker.run("UPDATE jobs SET run_at = run_at - interval '1 s'")
    assert worker.step(job)
    assert progress(api(), job) == (5, 4, 0)


def test_a_worker_killed_in_the_middle_of_a_step_leaves_no_half_of_it(
    api: ApiOf,
    webhook: dict[str, Any],
    worker: Worker,
    database: Database,
    tenant: FreshTenant,
) -> None:
    fail(api(), worker, webhook, 5)
    job = start(api(), webhook, rate=2)
    dying = worker.claim_job(job)

    def die_before_the_commit() -> None:
        with database.transaction(tenant.id) as session:
            step = bulk_replay.step(session, tenant.id, dying)
            assert steps.advance(session, dying, step)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        die_before_the_commit()
    assert replays(api(), webhook) == []
    assert progress(api(), job) == (5, 0, 0)

    worker.run("UPDATE jobs SET locked_until = clock_timestamp() - interval '1 s'")
    for _ in range(3):
        assert worker.step(job)
        worker.run("UPDATE jobs SET run_at = clock_timestamp()")

    assert progress(api(), job) == (5, 5, 0)
    assert sorted(row["sequence"] for row in replays(api(), webhook)) == [1, 2, 3, 4, 5]
    assert books(api(), webhook)["balanced"]


def takes_effect(database: Database, tenant: FreshTenant, claimed: Job) -> bool:
    """Take a step of a job with this claim, roll it back, and say whether it would have counted."""
    with database.transaction(tenant.id) as session:
        step = bulk_replay.step(session, tenant.id, claimed)
        advanced = steps.advance(session, claimed, step)
        session.rollback()
    return advanced


def test_a_step_whose_claim_was_taken_over_has_no_effect(
    api: ApiOf,
    webhook: dict[str, Any],
    worker: Worker,
    database: Database,
    tenant: FreshTenant,
) -> None:
    fail(api(), worker, webhook, 2)
    job = start(api(), webhook)
    stale = worker.claim_job(job)
    worker.run("UPDATE jobs SET locked_until = clock_timestamp() - interval '1 s'")
    worker.finish(job)

    assert not takes_effect(database, tenant, stale)

    assert progress(api(), job) == (2, 2, 0)
    assert len(replays(api(), webhook)) == 2


def test_a_step_under_way_while_its_job_is_cancelled_and_resumed_has_no_effect(
    api: ApiOf,
    webhook: dict[str, Any],
    worker: Worker,
    database: Database,
    tenant: FreshTenant,
) -> None:
    fail(api(), worker, webhook, 5)
    job = start(api(), webhook, rate=2)
    worker.step(job)
    worker.run("UPDATE jobs SET run_at = clock_timestamp()")
    stale = worker.claim_job(job)
    for verb in ("cancel", "resume"):
        assert api().post(f"/v1/jobs/{job['id']}/{verb}").status_code == 200

    assert not takes_effect(database, tenant, stale)

    # It would have gone on behind what was taken back.
    sent = 0
    for _ in range(20):
        worker.run("UPDATE jobs SET run_at = clock_timestamp()")
        worker.step(job)
        sent += worker.send(webhook, 200)
    assert (progress(api(), job), sent) == ((5, 5, 0), 5)


def test_two_jobs_over_the_same_events_send_each_once(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 20)
    both = [start(api(), webhook) for _ in range(2)]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(worker.finish, both))

    assert len(replays(api(), webhook)) == 20
    totals = [progress(api(), job) for job in both]
    assert sum(done for _, done, _ in totals) == 20
    assert sum(skipped for _, _, skipped in totals) == 20


def test_a_cancelled_job_stops_and_a_resumed_one_goes_on(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 5)
    job = start(api(), webhook, rate=2)
    worker.step(job)

    cancelled = api().post(f"/v1/jobs/{job['id']}/cancel").json
    worker.run("UPDATE jobs SET run_at = clock_timestamp()")
    assert cancelled["status"] == "cancelled"
    assert not worker.step(job)
    # What was not sent yet stays unsent.
    assert progress(api(), job) == (5, 0, 0)
    assert worker.send(webhook, 200) == 0
    assert books(api(), webhook)["replays"]["cancelled"] == 2

    resumed = api().post(f"/v1/jobs/{job['id']}/resume").json
    assert resumed["status"] == "queued"
    sent = 0
    for _ in range(20):
        worker.run("UPDATE jobs SET run_at = clock_timestamp()")
        worker.step(job)
        sent += worker.send(webhook, 200)
    assert (progress(api(), job), sent) == ((5, 5, 0), 5)
    assert read(api(), job)["status"] == "succeeded"
    assert len(replays(api(), webhook)) == 7
    assert books(api(), webhook)["balanced"]


@pytest.mark.parametrize("how", ["disabled", "deleted"])
def test_a_webhook_that_goes_away_ends_the_job_with_a_reason(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, how: str
) -> None:
    fail(api(), worker, webhook, 3)
    job = start(api(), webhook)
    if how == "disabled":
        disable(api(), webhook)
    else:
        api().delete(f"/v1/webhooks/{webhook['id']}")

    with pytest.raises(JobFailed, match=f"The webhook was {how}"):
        worker.step(job)

    assert replays(api(), webhook) == []


def test_a_job_that_died_of_a_disabled_webhook_can_be_retried(
    api: ApiOf,
    webhook: dict[str, Any],
    worker: Worker,
    database: Database,
    tenant: FreshTenant,
) -> None:
    fail(api(), worker, webhook, 3)
    job = start(api(), webhook, rate=1)
    worker.step(job)
    disable(api(), webhook)
    worker.run("UPDATE jobs SET run_at = clock_timestamp()")
    claimed = worker.claim_job(job)
    with database.transaction(tenant.id) as session:
        assert steps.fail(session, claimed, "The webhook was disabled.", for_good=True)
    assert read(api(), job)["status"] == "dead"

    enable(api(), webhook)
    assert api().post(f"/v1/jobs/{job['id']}/retry").json["status"] == "queued"
    # The first step's replay was cancelled with the webhook; what lay behind it goes on.
    for _ in range(3):
        worker.step(job)
        worker.run("UPDATE jobs SET run_at = clock_timestamp()")

    assert progress(api(), job) == (3, 3, 0)
    assert [row["status"] for row in replays(api(), webhook)] == ["pending", "pending", "cancelled"]


def test_an_event_that_was_pruned_before_its_turn_is_skipped(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    job = start(api(), webhook)
    worker.run("DELETE FROM events WHERE id = (SELECT min(id::text)::uuid FROM events)")

    worker.finish(job)

    assert progress(api(), job) == (2, 1, 1)
    assert books(api(), webhook)["replays"]["accepted"] == 1


# Asking for it


def test_a_bulk_replay_is_audited_and_a_preview_is_not(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 2)
    preview(api(), webhook)
    job = start(api(), webhook, status="failed", rate=7, until="2100-01-01T00:00:00Z")

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


def test_repeats_of_one_request_make_one_job(api: ApiOf, webhook: dict[str, Any]) -> None:
    path, again = f"/v1/webhooks/{webhook['id']}/replay", {"Idempotency-Key": "k"}
    first = api().post(path, {}, headers=again)
    second = api().post(path, {}, headers=again)

    assert first.json == second.json
    assert second.headers["Idempotent-Replayed"] == "true"
    assert len(api().get("/v1/jobs").json["data"]) == 1


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"status": "succeeded"}, "/status"),
        ({"status": []}, "/status"),
        ({"status": None}, "/status"),
        ({"status": ["failed", "lost"]}, "/status"),
        ({"status": ["failed"] * 4}, "/status"),
        ({"status": {"failed": True}}, "/status"),
        ({"rate": 0}, "/rate"),
        ({"rate": 10001}, "/rate"),
        ({"rate": 1.5}, "/rate"),
        ({"rate": "5"}, "/rate"),
        ({"rate": None}, "/rate"),
        ({"since": "yesterday"}, "/since"),
        ({"since": None}, "/since"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "/until"),
        ({"dry_run": "true"}, "/dry_run"),
        ({"dry_run": 1}, "/dry_run"),
        ({"event_id": "evt_1"}, "/event_id"),
    ],
)
def test_a_wrong_field_is_refused_and_named(
    api: ApiOf, webhook: dict[str, Any], body: dict[str, Any], pointer: str
) -> None:
    answer = api().post(f"/v1/webhooks/{webhook['id']}/replay", body)

    assert pointers(answer) == [pointer]
    assert api().get("/v1/jobs").json["data"] == []


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


def test_a_bulk_replay_needs_the_write_role_no_pin_and_a_webhook_of_one_s_own(
    api: ApiOf, webhook: dict[str, Any], mint: Mint, other_tenant: FreshTenant
) -> None:
    path = f"/v1/webhooks/{webhook['id']}/replay"
    pinned = api(mint("write", pin_of(make_session(api()))))

    refused(api(mint("read")).post(path, {}), 403, "insufficient-role")
    refused(pinned.post(path, {}), 403, "pinned-key")
    for body in ({}, {"dry_run": True}):
        refused(api(other_tenant.root_key).post(path, body), 404, "not-found")
        refused(api().post(f"/v1/webhooks/whk_{NOBODY}/replay", body), 404, "not-found")
    assert api(mint("write")).post(path).status_code == 202
