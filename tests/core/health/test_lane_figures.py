"""Figures of lanes: each in one state, and the worst receivers by name, a few of them."""

from collections.abc import Callable
from uuid import UUID

import pytest
from sqlalchemy import text

from app.core.health import lane_figures
from app.core.health.lane_figures import STATES, LaneFigures
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
    "recovering": f"UPDATE lanes SET recovering = 1, recovering_since = {AGO}",
    "slow": f"UPDATE lanes SET slow_at = clock_timestamp(), due_at = {AGO}",
    "ready": f"UPDATE lanes SET due_at = {AGO}",
}


@pytest.fixture
def states(outbox: Outbox) -> Callable[[], dict[str, LaneFigures]]:
    def read() -> dict[str, LaneFigures]:
        with outbox.database.across_tenants() as session:
            return {each.state: each for each in lane_figures.by_state(session)}

    return read


def numbered(outbox: Outbox, count: int = 1) -> UUID:
    """Return a webhook with so many open deliveries."""
    webhook = outbox.webhook()
    outbox.emit(count)
    outbox.number(webhook)
    return webhook


@pytest.mark.parametrize("state", STATES)
def test_a_lane_counts_in_the_state_that_it_is_in(
    outbox: Outbox, states: Callable[[], dict[str, LaneFigures]], state: str
) -> None:
    numbered(outbox, 3)
    with outbox.database.across_tenants() as session:
        session.execute(text(CAUSES[state]))
    seen = states()
    assert tuple(seen) == STATES
    assert {name: each.lanes for name, each in seen.items() if each.lanes} == {state: 1}
    assert (seen[state].open, seen[state].concurrency) == (3, 1)
    assert AN_HOUR <= seen[state].lag < 2 * AN_HOUR


def test_a_lane_with_nothing_to_send_is_not_late(
    outbox: Outbox, states: Callable[[], dict[str, LaneFigures]]
) -> None:
    outbox.webhook()
    outbox.run(CAUSES["paused"])
    assert (states()["paused"].lanes, states()["paused"].lag) == (1, 0.0)


def test_lanes_of_webhooks_that_send_nothing_are_in_no_state(
    outbox: Outbox, states: Callable[[], dict[str, LaneFigures]]
) -> None:
    outbox.webhook()
    outbox.run("UPDATE webhooks SET status = 'disabled'")
    assert sum(each.lanes for each in states().values()) == 0


def test_a_receiver_that_refuses_is_among_the_worst(outbox: Outbox) -> None:
    outbox.webhook()
    outbox.run("UPDATE lanes SET unsuccessful_attempts = 30, refused_status = 404")
    with outbox.database.across_tenants() as session:
        assert lane_figures.worst(session) == []
    outbox.run("UPDATE lanes SET unsuccessful_deliveries = 10")
    with outbox.database.across_tenants() as session:
        assert [each.failures for each in lane_figures.worst(session)] == [30]


def test_only_the_worst_webhooks_are_named(outbox: Outbox) -> None:
    webhooks = [outbox.webhook() for _ in range(lane_figures.WORST + 3)]
    for failures, webhook in enumerate(webhooks):
        outbox.run(
            "UPDATE lanes SET consecutive_failures = :n WHERE webhook_id = :w",
            n=failures,
            w=webhook,
        )
    with outbox.database.across_tenants() as session:
        worst = lane_figures.worst(session)
    assert [each.webhook_id for each in worst] == webhooks[:2:-1]
    assert worst[0].failures == lane_figures.WORST + 2
    assert {each.tenant_id for each in worst} == {outbox.tenant_id}
    outbox.run("UPDATE lanes SET consecutive_failures = 0")
    with outbox.database.across_tenants() as session:
        assert lane_figures.worst(session) == []
