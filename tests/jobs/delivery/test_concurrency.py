"""How many POSTs are out at once: as many as are allowed, never more, however long each takes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from app import queue
from app.core import tenants
from tests.support.faults import LONG_ENOUGH, OwnValkey, until
from tests.support.secrets import MASTER_KEYS
from tests.support.servers.receivers import OK, Receiver, Request, http_answer
from tests.support.workers.worlds import World, delivering, take_turn

MOST = 16
THREADS = 64


class Holding(Receiver):
    """A receiver that keeps every POST until it is let go, and counts how many are out."""

    def __init__(self, answer: bytes = OK) -> None:
        self.out = 0
        self.most = 0
        self._changed = threading.Condition()
        self._let_go = 0
        self._arrived = 0
        self._answer_with = answer
        super().__init__(self._hold)

    def let_go(self, count: int) -> None:
        """Answer so many POSTs more, in the order in which they came or will come."""
        with self._changed:
            self._let_go += count
            self._changed.notify_all()

    def _hold(self, _: Request) -> bytes:
        with self._changed:
            self.out += 1
            self.most = max(self.most, self.out)
            mine = self._arrived
            self._arrived += 1
            self._changed.wait_for(lambda: mine < self._let_go, LONG_ENOUGH)
            self.out -= 1
        return self._answer_with


@pytest.fixture
def world(open_world: Callable[..., World], own_valkey: OwnValkey) -> World:
    return open_world(threads=THREADS, redis_url=own_valkey.url)


@contextmanager
def turns(world: World, webhook: UUID, count: int) -> Iterator[list[threading.Thread]]:
    """Have so many turns taken at once, each in a thread."""
    lane = (world.runtime, world.tenant_id, webhook)
    running = [threading.Thread(target=take_turn, args=lane) for _ in range(count)]
    for turn in running:
        turn.start()
    yield running
    for turn in running:
        turn.join(LONG_ENOUGH)


def test_a_slow_receiver_keeps_its_posts(world: World, own_valkey: OwnValkey) -> None:
    """Each is out for over a second, and each is answered well."""
    with Holding() as receiver, delivering(world.runtime, own_valkey.url, THREADS):
        webhook = world.webhook(receiver.url(), max_in_flight=MOST)
        world.has_answered(webhook, latency_ms=1_200.0)
        world.emit(3 * MOST)
        for _ in range(2):
            until(lambda: receiver.out == MOST)
            receiver.let_go(MOST)
        until(lambda: receiver.out == MOST)
        receiver.let_go(MOST)
        until(lambda: {row["status"] for row in world.deliveries(webhook)} == {"succeeded"})


def test_a_new_webhook_begins_with_one_post_and_has_all_of_them_after_ten_answers(
    world: World, own_valkey: OwnValkey
) -> None:
    with Holding() as receiver, delivering(world.runtime, own_valkey.url, THREADS):
        webhook = world.webhook(receiver.url(), max_in_flight=MOST)
        world.emit(10 + MOST)
        until(lambda: receiver.out == 1)
        world.turn(webhook)
        assert receiver.most == 1
        receiver.let_go(10 + MOST)
        until(lambda: {row["status"] for row in world.deliveries(webhook)} == {"succeeded"})
        assert world.lane(webhook)["concurrency"] == MOST


def test_a_full_lane_is_rung_again_once_one_of_its_turns_has_left(
    world: World, own_valkey: OwnValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever turn noted that it was full, and however long that one hangs."""
    monkeypatch.setattr(queue, "_FULL_MS", 60_000)
    with Holding() as receiver:
        webhook = world.webhook(receiver.url(), max_in_flight=2)
        world.has_answered(webhook)
        world.emit()
        with turns(world, webhook, 1) as first:
            until(lambda: receiver.out == 1)
            world.emit()
            with turns(world, webhook, 1):
                until(lambda: receiver.out == 2)
                receiver.let_go(1)
                first[0].join(LONG_ENOUGH)
                own_valkey.client.delete("dramatiq:deliver", f"bell:{webhook.hex}")
                world.emit()
                until(lambda: own_valkey.client.llen("dramatiq:deliver"))
                assert receiver.out == 1
                receiver.let_go(1)


def test_overload_halves_what_is_allowed_and_turns_beyond_it_leave(world: World) -> None:
    with Holding(http_answer(503)) as receiver:
        webhook = world.webhook(receiver.url(), max_in_flight=MOST)
        world.has_answered(webhook, latency_ms=900.0)
        world.emit(2 * MOST)
        with turns(world, webhook, MOST):
            until(lambda: receiver.out == MOST)
            receiver.let_go(2 * MOST)
        assert world.lane(webhook)["concurrency"] == MOST // 2
        assert len(receiver.requests) == MOST


def test_toggling_max_in_flight_lets_out_no_more_than_its_highest(world: World) -> None:
    with Holding() as receiver:
        # It has ten slots more than it may use.
        webhook = world.webhook(receiver.url(), max_in_flight=MOST)
        world.change(webhook, max_in_flight=6)
        world.has_answered(webhook)
        world.emit(400)
        with turns(world, webhook, 6):
            until(lambda: receiver.out == 6)
            for _ in range(4):
                world.change(webhook, max_in_flight=1)
                world.turn(webhook)
                world.change(webhook, max_in_flight=6)
                world.turn(webhook)
            assert (receiver.out, receiver.most) == (6, 6)
            world.change(webhook, status="disabled")
            # A turn that has not looked at its webhook again may send one more.
            receiver.let_go(400)


def test_a_lower_max_in_flight_applies_to_turns_under_way(world: World) -> None:
    with Holding() as receiver:
        webhook = world.webhook(receiver.url(), max_in_flight=6)
        # So a claim is of one.
        world.has_answered(webhook, latency_ms=900.0)
        world.emit(400)
        with turns(world, webhook, 6) as running:
            until(lambda: receiver.out == 6)
            world.change(webhook, max_in_flight=1)
            receiver.let_go(6)
            until(lambda: sum(turn.is_alive() for turn in running) == 1)
            until(lambda: receiver.out == 1)
            world.turn(webhook)
            assert len(receiver.requests) == 7
            world.change(webhook, status="disabled")
            receiver.let_go(1)


def test_a_tenant_whose_webhooks_all_hang_leaves_another_its_parallelism(
    world: World, own_valkey: OwnValkey
) -> None:
    made = tenants.create(world.database, MASTER_KEYS, "a crowd")
    crowd = World(world.runtime, made[0])
    # Of 62 threads for deliveries.
    most_of_theirs, half = 24, MOST // 2
    with (
        Holding() as hanging,
        Holding() as slow,
        Receiver() as quick,
        delivering(world.runtime, own_valkey.url, THREADS),
    ):
        for _ in range(2 * most_of_theirs):
            crowd.webhook(hanging.url())
        crowd.emit(4)
        until(lambda: hanging.out >= most_of_theirs)
        for receiver, latency_ms in ((slow, 1_200.0), (quick, 5.0)):
            webhook = world.webhook(receiver.url(), max_in_flight=MOST)
            world.has_answered(webhook, latency_ms=latency_ms)
        world.emit(MOST)
        until(lambda: len(quick.requests) == MOST)
        until(lambda: slow.out >= half)
        slow.let_go(MOST)
        hanging.let_go(1_000)


def test_a_slot_whose_lease_ran_out_is_not_kept_beside_those_taken_since(world: World) -> None:
    with Holding() as receiver:
        webhook = world.webhook(receiver.url(), max_in_flight=1)
        world.has_answered(webhook, latency_ms=900.0)
        world.emit(3)
        with turns(world, webhook, 1):
            until(lambda: receiver.out == 1)
            world.run("UPDATE lanes SET slot_leases = ARRAY[clock_timestamp() - interval '1 s']")
            world.runtime.bell.note_full(webhook, full=False)
            with turns(world, webhook, 1) as successor:
                until(lambda: receiver.out == 2)
                receiver.let_go(1)
                until(lambda: receiver.out == 1)
                world.change(webhook, status="disabled")
                receiver.let_go(1)
                successor[0].join(LONG_ENOUGH)
        assert len(receiver.requests) == 2
