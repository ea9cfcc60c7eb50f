"""The gauges: what is due is counted, also before any worker has seen it."""

from sqlalchemy import text

from app.core.delivery import sweeping
from app.core.health import gauges
from app.core.health.gauges import Gauges
from app.core.jobs import job_queue
from tests.support.workers.outbox import Outbox


def read(outbox: Outbox) -> Gauges:
    with outbox.database.across_tenants() as session:
        return gauges.read(session)


def test_an_empty_service_has_nothing_due(outbox: Outbox) -> None:
    assert read(outbox) == Gauges(0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 0.0, 0.0, 0, 0, 0)


def test_events_that_no_worker_has_seen_are_due(outbox: Outbox) -> None:
    """Without Redis and without the clock nothing else would tell of them."""
    outbox.webhook()
    outbox.webhook()
    outbox.emit(2)
    assert read(outbox).lanes_due == 2
    assert read(outbox).lanes_overdue == 0
    outbox.run("UPDATE deliveries SET next_attempt_at = clock_timestamp() - interval '90 s'")
    seen = read(outbox)
    assert (seen.lanes_due, seen.lanes_overdue) == (2, 2)
    assert 90 <= seen.oldest_due < 120


def test_a_lane_counts_once_with_numbered_and_unnumbered_rows(outbox: Outbox) -> None:
    webhook = outbox.webhook()
    outbox.emit()
    outbox.number(webhook)
    outbox.emit()
    with outbox.database.across_tenants() as session:
        sweeping.due(session)
    assert read(outbox).lanes_due == 1


def test_what_is_due_later_is_not_due(outbox: Outbox) -> None:
    webhook = outbox.webhook()
    outbox.emit()
    outbox.number(webhook)
    outbox.run("UPDATE lanes SET due_at = clock_timestamp() + interval '5 s'")
    assert (read(outbox).lanes_due, read(outbox).oldest_due) == (0, 0.0)


def test_a_paused_lane_waits_and_is_not_due(outbox: Outbox) -> None:
    outbox.webhook()
    outbox.emit()
    outbox.run("UPDATE lanes SET paused_until = clock_timestamp() + interval '60 s'")
    assert (read(outbox).lanes_due, read(outbox).lanes_paused) == (0, 1)
    outbox.run("UPDATE lanes SET paused_until = clock_timestamp() - interval '1 s'")
    assert (read(outbox).lanes_due, read(outbox).lanes_paused) == (1, 0)


def test_a_suspended_tenant_is_not_late(outbox: Outbox) -> None:
    outbox.webhook()
    outbox.emit()
    assert read(outbox).lanes_due == 1
    outbox.run("UPDATE tenants SET suspended_at = clock_timestamp()")
    assert (read(outbox).lanes_due, read(outbox).oldest_due) == (0, 0.0)


def test_disabled_webhooks_are_counted_and_deleted_ones_are_not(outbox: Outbox) -> None:
    enabled, _, deleted = (outbox.webhook() for _ in range(3))
    outbox.run("UPDATE webhooks SET status = 'disabled' WHERE id <> :w", w=enabled)
    assert read(outbox).webhooks_disabled == 2
    outbox.run("UPDATE webhooks SET deleted_at = clock_timestamp() WHERE id = :w", w=deleted)
    seen = read(outbox)
    assert (seen.webhooks, seen.webhooks_disabled) == (2, 1)


def test_jobs_are_counted_until_they_end_well(outbox: Outbox) -> None:
    with outbox.database.transaction(outbox.tenant_id) as session:
        for number in range(4):
            job_queue.enqueue(session, outbox.tenant_id, kind="bulk_replay", args={"n": number})
    outbox.run("UPDATE jobs SET run_at = clock_timestamp() - interval '7 s'")
    seen = read(outbox)
    assert (seen.jobs_queued, seen.jobs_dead) == (4, 0)
    assert 7 <= seen.oldest_job_due < 30
    outbox.run("UPDATE jobs SET locked_until = clock_timestamp() + interval '30 s'")
    assert read(outbox).oldest_job_due == 0
    outbox.run("UPDATE jobs SET status = 'dead', finished_at = clock_timestamp()")
    seen = read(outbox)
    assert (seen.jobs_queued, seen.jobs_dead) == (0, 4)


def test_the_cost_follows_what_is_due_and_not_what_there_is(outbox: Outbox) -> None:
    outbox.webhook()
    outbox.emit(2_000)
    with outbox.database.transaction(outbox.tenant_id) as session:
        plan = "\n".join(
            session.scalars(
                text(
                    "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) "
                    + gauges._READ.replace("%(overdue)s", "interval '60 s'")
                )
            )
        )
    assert read(outbox).lanes_due == 1
    # The recursion takes the first row of each lane and passes over the others.
    assert "actual rows=2000" not in plan, plan
