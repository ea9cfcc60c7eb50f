"""Gauges of what is due, also before any worker has seen it, and of lanes by their state."""

import pytest
from sqlalchemy import text

from app import ids
from app.core.health import gauges
from app.core.health.gauges import STATES, WORST
from app.core.jobs import job_queue
from tests.core.health.conftest import Read
from tests.support.database.plans import explained, rows_met
from tests.support.workers.outbox import Outbox

AN_HOUR = 3_600
# What puts a lane into each state, and since when it waits then.
AGO = "clock_timestamp() - interval '1 hour'"
CAUSES = {
    "suspended": f"UPDATE tenants SET suspended_at = {AGO}",
    "held": f"UPDATE lanes SET held_since = {AGO}",
    "paused": "UPDATE lanes SET paused_until = clock_timestamp() + interval '1 day',"
    f" failing_since = {AGO}",
    "refusing": "UPDATE lanes SET unsuccessful_deliveries = 10, refused_status = 401,"
    f" unsuccessful_since = {AGO}",
    "recovering": f"UPDATE lanes SET recovering_since = {AGO}",
    "slow": f"UPDATE lanes SET slow_at = clock_timestamp(), due_at = {AGO}",
    "ready": f"UPDATE lanes SET due_at = {AGO}",
}


def read(outbox: Outbox) -> dict[str, float]:
    with outbox.database.across_tenants() as session:
        return gauges.read_totals(session)


def test_an_empty_service_has_nothing_due(outbox: Outbox) -> None:
    assert set(read(outbox).values()) == {0}


def test_events_that_no_worker_has_seen_are_due(outbox: Outbox) -> None:
    """Without Redis and without the clock nothing else would tell of them."""
    outbox.webhook()
    outbox.webhook()
    outbox.emit(2)
    assert read(outbox)["lanes_due"] == 2
    assert read(outbox)["lanes_overdue"] == 0
    outbox.run("UPDATE open_deliveries SET next_attempt_at = clock_timestamp() - interval '90 s'")
    late = read(outbox)
    assert (late["lanes_due"], late["lanes_overdue"]) == (2, 2)
    assert 90 <= late["oldest_due_seconds"] < 120


def test_disabled_webhooks_are_counted_and_deleted_ones_are_not(outbox: Outbox) -> None:
    enabled, _, deleted = (outbox.webhook() for _ in range(3))
    outbox.run("UPDATE webhooks SET status = 'disabled' WHERE id <> :w", w=enabled)
    assert read(outbox)["webhooks_disabled"] == 2
    outbox.run("UPDATE webhooks SET deleted_at = clock_timestamp() WHERE id = :w", w=deleted)
    now = read(outbox)
    assert (now["webhooks_enabled"], now["webhooks_disabled"]) == (1, 1)


def test_jobs_are_counted_until_they_end_well(outbox: Outbox) -> None:
    with outbox.database.transaction(outbox.tenant_id) as session:
        for number in range(4):
            job_queue.enqueue(session, outbox.tenant_id, kind="bulk_replay", args={"n": number})
    outbox.run("UPDATE jobs SET run_at = clock_timestamp() - interval '7 s'")
    now = read(outbox)
    assert (now["jobs_queued"], now["jobs_dead"]) == (4, 0)
    assert 7 <= now["oldest_job_due_seconds"] < 30
    outbox.run("UPDATE jobs SET locked_until = clock_timestamp() + interval '30 s'")
    assert read(outbox)["oldest_job_due_seconds"] == 0
    outbox.run("UPDATE jobs SET status = 'dead', finished_at = clock_timestamp()")
    now = read(outbox)
    assert (now["jobs_queued"], now["jobs_dead"]) == (0, 4)


def test_the_cost_follows_what_is_due_and_not_what_there_is(outbox: Outbox) -> None:
    outbox.webhook()
    outbox.emit(2_000)
    for _ in range(2):
        outbox.swept()
    with outbox.database.transaction(outbox.tenant_id) as session:
        plan = explained(session.connection(), gauges._READ_TOTALS, {"overdue": gauges.OVERDUE})
    assert read(outbox)["lanes_due"] == 1
    # The sweep has looked at them, and made their lane due.
    assert rows_met(plan) < 200, plan


@pytest.mark.parametrize("state", STATES)
def test_a_lane_counts_in_the_state_that_it_is_in(outbox: Outbox, seen: Read, state: str) -> None:
    webhook = outbox.webhook()
    outbox.emit(3)
    outbox.number(webhook)
    with outbox.database.across_tenants() as session:
        session.execute(text(CAUSES[state]))
    lanes = {name: each.values for name, each in seen().items() if "lane" in name}
    assert lanes["lanes"] == {(name,): float(name == state) for name in STATES}
    assert lanes["lane_open_deliveries"][state,] == 3
    assert lanes["lane_concurrency"][state,] == 1
    assert AN_HOUR <= lanes["lane_lag_seconds"][state,] < 2 * AN_HOUR


def test_lanes_without_anything_to_send_are_not_late_and_disabled_ones_are_in_no_state(
    outbox: Outbox, seen: Read
) -> None:
    outbox.webhook()
    outbox.run(CAUSES["paused"])
    assert seen()["lanes"].values["paused",] == 1
    assert seen()["lane_lag_seconds"].values["paused",] == 0
    outbox.run("UPDATE webhooks SET status = 'disabled'")
    assert set(seen()["lanes"].values.values()) == {0}


def test_a_receiver_that_refuses_is_among_the_worst(outbox: Outbox, seen: Read) -> None:
    outbox.webhook()
    outbox.run(
        "UPDATE lanes SET unsuccessful_attempts = 30, refused_status = 404,"
        " unsuccessful_since = clock_timestamp()"
    )
    assert seen()["webhook_consecutive_failures"].values == {}
    outbox.run("UPDATE lanes SET unsuccessful_deliveries = 10")
    assert list(seen()["webhook_consecutive_failures"].values.values()) == [30]


def test_only_the_worst_webhooks_are_named(outbox: Outbox, seen: Read) -> None:
    webhooks = [outbox.webhook() for _ in range(WORST + 3)]
    for failures, webhook in enumerate(webhooks):
        outbox.run(
            "UPDATE lanes SET consecutive_failures = :n, unsuccessful_since = clock_timestamp()"
            " WHERE webhook_id = :w",
            n=failures,
            w=webhook,
        )
    worst = seen()["webhook_consecutive_failures"].values
    tenant = ids.text("ten", outbox.tenant_id)
    assert list(worst) == [(tenant, ids.text("whk", each)) for each in webhooks[:2:-1]]
    assert next(iter(worst.values())) == WORST + 2
    outbox.run("UPDATE lanes SET consecutive_failures = 0")
    assert seen()["webhook_consecutive_failures"].values == {}
