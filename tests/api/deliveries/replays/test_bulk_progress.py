"""A bulk replay goes on after every way of stopping it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.core.jobs import steps
from app.core.jobs.steps import JobFailed
from app.core.replay import bulk_replay
from app.database import Database
from app.models import Job
from tests.api.deliveries.replays.bulk import (
    disable,
    enable,
    fail,
    of,
    progress,
    read,
    replays,
    start,
)
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.sending import Worker, books


def test_more_than_a_step_s_worth_takes_several_steps(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bulk_replay.MOST_A_STEP == 500
    monkeypatch.setattr(bulk_replay, "MOST_A_STEP", 5)
    fail(api(), worker, webhook, 12)
    job = start(api(), of(webhook))

    assert worker.step(job)
    assert progress(api(), job) == (12, 5, 0)
    worker.finish(job)

    assert progress(api(), job) == (12, 12, 0)
    assert books(api(), webhook)["replays"]["accepted"] == 12


def test_a_rate_bounds_each_step_and_spaces_them(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 5)
    job = start(api(), of(webhook), rate=2)

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
    job = start(api(), of(webhook), rate=2)
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


def sent_to_the_end(worker: Worker, job: dict[str, Any], webhook: dict[str, Any]) -> int:
    """Do a job's steps and send what each makes; return how many were sent."""
    sent = 0
    for _ in range(20):
        worker.run("UPDATE jobs SET run_at = clock_timestamp()")
        worker.step(job)
        sent += worker.send(webhook, 200)
    return sent


def test_a_step_whose_claim_was_taken_over_has_no_effect(
    api: ApiOf,
    webhook: dict[str, Any],
    worker: Worker,
    database: Database,
    tenant: FreshTenant,
) -> None:
    fail(api(), worker, webhook, 2)
    job = start(api(), of(webhook))
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
    job = start(api(), of(webhook), rate=2)
    worker.step(job)
    worker.run("UPDATE jobs SET run_at = clock_timestamp()")
    stale = worker.claim_job(job)
    for verb in ("cancel", "resume"):
        assert api().post(f"/v1/jobs/{job['id']}/{verb}").status_code == 200

    assert not takes_effect(database, tenant, stale)

    # It would have gone on behind what was taken back.
    assert sent_to_the_end(worker, job, webhook) == 5
    assert progress(api(), job) == (5, 5, 0)


def test_two_jobs_over_the_same_events_send_each_once(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 20)
    both = [start(api(), of(webhook)) for _ in range(2)]

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
    job = start(api(), of(webhook), rate=2)
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
    assert sent_to_the_end(worker, job, webhook) == 5
    assert progress(api(), job) == (5, 5, 0)
    assert read(api(), job)["status"] == "succeeded"
    assert len(replays(api(), webhook)) == 7
    assert books(api(), webhook)["balanced"]


def test_a_resumed_job_that_sends_slowly_is_soon_where_it_stopped(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    fail(api(), worker, webhook, 12)
    job = start(api(), of(webhook), rate=2)
    for _ in range(4):
        worker.run("UPDATE jobs SET run_at = clock_timestamp()")
        worker.step(job)
        worker.send(webhook, 400)
    for verb in ("cancel", "resume"):
        api().post(f"/v1/jobs/{job['id']}/{verb}")
    worker.step(job)
    assert len(replays(api(), webhook)) == 10
    assert sent_to_the_end(worker, job, webhook) == 4
    assert progress(api(), job) == (12, 12, 0)


@pytest.mark.parametrize("how", ["disabled", "deleted"])
def test_a_webhook_that_goes_away_ends_the_job_with_a_reason(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, how: str
) -> None:
    fail(api(), worker, webhook, 3)
    job = start(api(), of(webhook))
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
    job = start(api(), of(webhook), rate=1)
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
    job = start(api(), of(webhook))
    worker.run("DELETE FROM stored_events WHERE id = (SELECT min(id::text)::uuid FROM events)")

    worker.finish(job)

    assert progress(api(), job) == (2, 1, 1)
    assert books(api(), webhook)["replays"]["accepted"] == 1
