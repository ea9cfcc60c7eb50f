"""A lane's turn when the service itself is in trouble: what is not sent waits, and is not lost."""

from collections.abc import Callable
from uuid import UUID

import pytest

from app import ids
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from jobs.delivery import lane_run
from tests.support.faults import OwnValkey, until
from tests.support.servers.receivers import OK, Receiver, Request
from tests.support.workers.worlds import World


@pytest.fixture
def world(open_world: Callable[..., World]) -> World:
    return open_world()


@pytest.fixture
def ringing(open_world: Callable[..., World], own_valkey: OwnValkey) -> World:
    """Return a world whose commits ring."""
    return open_world(redis_url=own_valkey.url)


@pytest.mark.parametrize("over", [True, False])
def test_a_probe_whose_claim_took_long_is_sent_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    # However soon the claim was made, what it holds beyond its first row is handed back.
    monkeypatch.setattr(lane_run, "SLOWER_SECONDS", -1.0)
    with Receiver() as receiver:
        webhook = _two_events(world, receiver)
        # The probe of a pause that is over, or what is urgent meanwhile.
        _pause(world, over=over)
        world.turn(webhook)
        assert len(receiver.requests) == 1
    assert _states(world) == [("pending", 0), ("succeeded", 1)]


@pytest.mark.usefixtures("forgotten")
def test_rows_whose_secrets_cannot_be_opened_are_not_claimed(
    world: World, open_world: Callable[..., World]
) -> None:
    elsewhere = open_world(master_keys=MasterKeys.parse(MasterKeys.generate()))
    with Receiver() as receiver:
        webhook = _two_events(world, receiver)
        with pytest.raises(CannotOpen):
            elsewhere.turn(webhook)
        assert _states(world) == [("pending", 0), ("pending", 0)]
        world.turn(webhook)
        assert len(receiver.requests) == 2


def test_a_lane_without_a_thread_waits_for_the_sweep(ringing: World, own_valkey: OwnValkey) -> None:
    with Receiver() as receiver:
        webhook = _two_events(ringing, receiver)
        permits = ringing.fill_bulkhead()
        # The ring of their commit comes from another thread.
        until(lambda: own_valkey.client.llen("dramatiq:deliver"))
        own_valkey.client.flushall()
        ringing.turn(webhook)
        assert receiver.requests == []
        assert own_valkey.client.llen("dramatiq:deliver") == 0
        for permit in permits:
            ringing.runtime.bulkhead.release(permit)
        ringing.turn(webhook)
        assert len(receiver.requests) == 2


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_slow_lane_whose_turn_ends_leaves_its_ring_to_the_sweep_while_its_tenant_has_no_thread(
    ringing: World, own_valkey: OwnValkey, monkeypatch: pytest.MonkeyPatch, others_wait: bool
) -> None:
    def answer(_: Request) -> bytes:
        monkeypatch.setattr(lane_run, "TURN_SECONDS", 0.0)
        return OK

    with Receiver(answer) as receiver:
        webhook = _two_events(ringing, receiver)
        ringing.change(webhook, max_in_flight=1)
        ringing.has_answered(webhook, latency_ms=1_200.0)
        ringing.run("UPDATE lanes SET slow_at = clock_timestamp()")
        if others_wait:
            ringing.runtime.bulkhead.release(ringing.fill_bulkhead()[0])
        until(lambda: own_valkey.client.llen("dramatiq:deliver"))
        own_valkey.client.flushall()
        ringing.turn(webhook)
        assert len(receiver.requests) == 1
        assert own_valkey.client.llen("dramatiq:deliver") == (0 if others_wait else 1)
        # Behind all lanes that the sweep rang before.
        assert ringing.lane(webhook)["ring_at"] is not None


def _two_events(world: World, receiver: Receiver) -> UUID:
    """Emit two events to a webhook of this receiver; return the webhook's id."""
    webhook = world.webhook(receiver.url())
    world.emit(2)
    return webhook


def _pause(world: World, *, over: bool) -> None:
    """Pause the tenant's one lane: until now, or for an hour in which one delivery is urgent."""
    pause = "pause_level = 1, paused_until = clock_timestamp() + :s * interval '1 second'"
    world.run(f"UPDATE lanes SET {pause}", s=0 if over else 3600)
    if not over:
        first = "(SELECT id FROM deliveries ORDER BY id LIMIT 1)"
        world.run(f"UPDATE open_deliveries SET priority = 0 WHERE id = {first}")


def _states(world: World) -> list[tuple[str, int]]:
    rows = world.rows("SELECT status, attempts FROM deliveries ORDER BY status")
    return [(row["status"], row["attempts"]) for row in rows]


def test_a_delivery_names_its_lane_where_there_are_several(world: World) -> None:
    with Receiver() as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        world.turn(webhook)
        world.change(webhook, lanes=2)
        world.emit(60)
        while world.books(webhook)["pending"]:
            for number in (1, 2):
                world.turn(ids.lane_of(webhook, number))
    first, *others = [request.headers for request in receiver.requests]
    assert "x-service-lane" not in first
    assert {headers["x-service-lane"] for headers in others} == {"1", "2"}
