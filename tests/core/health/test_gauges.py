"""The gauges: what is due is seen, whether or not anybody has looked at it yet."""

from sqlalchemy import text

from app import clock
from app.core.delivery import events, sweeping
from app.core.delivery.events import NewEvent
from app.core.delivery.lanes import lanes
from app.core.health import gauges
from app.core.health.gauges import Gauges
from app.core.jobs import job_queue
from tests.core.health.watched import Place


def test_an_empty_service_has_nothing_due(place: Place) -> None:
    assert place.gauges() == Gauges(
        0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 0.0, 0.0, 0, 0, 0
    )


def test_events_that_nobody_has_looked_at_are_due(place: Place) -> None:
    """Without Redis and without the clock nothing else would tell of them."""
    place.webhook()
    place.webhook()
    place.emit()
    place.emit()
    assert place.gauges().lanes_due == 2
    assert place.gauges().lanes_overdue == 0
    place.run("UPDATE deliveries SET next_attempt_at = clock_timestamp() - interval '90 s'")
    seen = place.gauges()
    assert (seen.lanes_due, seen.lanes_overdue) == (2, 2)
    assert 90 <= seen.oldest_due < 120


def test_a_lane_counts_once_whoever_knows_of_it(place: Place) -> None:
    webhook = place.webhook()
    place.emit()
    with place.database.transaction(place.tenant_id) as session:
        lanes.number(session, place.tenant_id, webhook)
    place.emit()
    with place.database.across_tenants() as session:
        sweeping.due(session)
    assert place.gauges().lanes_due == 1


def test_what_is_due_later_is_not_due(place: Place) -> None:
    webhook = place.webhook()
    place.emit()
    with place.database.transaction(place.tenant_id) as session:
        lanes.number(session, place.tenant_id, webhook)
    place.run("UPDATE lanes SET due_at = clock_timestamp() + interval '5 s'")
    assert (place.gauges().lanes_due, place.gauges().oldest_due) == (0, 0.0)


def test_a_paused_lane_waits_and_is_not_due(place: Place) -> None:
    place.webhook()
    place.emit()
    place.run("UPDATE lanes SET paused_until = clock_timestamp() + interval '60 s'")
    assert (place.gauges().lanes_due, place.gauges().lanes_paused) == (0, 1)
    place.run("UPDATE lanes SET paused_until = clock_timestamp() - interval '1 s'")
    assert (place.gauges().lanes_due, place.gauges().lanes_paused) == (1, 0)


def test_a_suspended_tenant_is_not_late(place: Place) -> None:
    place.webhook()
    place.emit()
    assert place.gauges().lanes_due == 1
    place.run("UPDATE tenants SET suspended_at = clock_timestamp()")
    assert (place.gauges().lanes_due, place.gauges().oldest_due) == (0, 0.0)


def test_disabled_webhooks_are_counted_and_deleted_ones_are_not(place: Place) -> None:
    enabled, _, deleted = (place.webhook() for _ in range(3))
    place.run("UPDATE webhooks SET status = 'disabled' WHERE id <> :w", w=enabled)
    assert place.gauges().webhooks_disabled == 2
    place.run("UPDATE webhooks SET deleted_at = clock_timestamp() WHERE id = :w", w=deleted)
    seen = place.gauges()
    assert (seen.webhooks, seen.webhooks_disabled) == (2, 1)


def test_jobs_are_counted_until_they_end_well(place: Place) -> None:
    with place.database.transaction(place.tenant_id) as session:
        for number in range(4):
            job_queue.enqueue(session, place.tenant_id, kind="bulk_replay", args={"n": number})
    place.run("UPDATE jobs SET run_at = clock_timestamp() - interval '7 s'")
    seen = place.gauges()
    assert (seen.jobs_queued, seen.jobs_dead) == (4, 0)
    assert 7 <= seen.oldest_job_due < 30
    place.run("UPDATE jobs SET locked_until = clock_timestamp() + interval '30 s'")
    assert place.gauges().oldest_job_due == 0
    place.run("UPDATE jobs SET status = 'dead', finished_at = clock_timestamp()")
    seen = place.gauges()
    assert (seen.jobs_queued, seen.jobs_dead) == (0, 4)


def test_the_cost_follows_what_is_due_and_not_what_there_is(place: Place) -> None:
    place.webhook()
    with place.database.transaction(place.tenant_id) as session:
        at = clock.now()
        events.emit(
            session, place.tenant_id, [NewEvent("finding.created", {}, at) for _ in range(2_000)]
        )
        plan = "\n".join(
            session.scalars(
                text(
                    "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) "
                    + gauges._READ.replace("%(overdue)s", "interval '60 s'")
                )
            )
        )
    assert place.gauges().lanes_due == 1
    # The recursion takes the first row of each lane and passes over the others.
    assert "actual rows=2000" not in plan, plan
