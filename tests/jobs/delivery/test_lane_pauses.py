"""What stops a lane: failures pause it, a probe and a new URL steer it; a held one keeps all."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from app import clock
from app.core.replay import replay
from tests.support.servers.receivers import Receiver, Request, http_answer
from tests.support.workers.worlds import World


def test_five_failures_in_a_row_pause_the_lane_and_waiting_spends_no_attempt(world: World) -> None:
    with Receiver(http_answer(500)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(8)
        world.turn(webhook)
        world.turn(webhook)
        assert len(receiver.requests) == 5
    lane = world.lane(webhook)
    assert lane["consecutive_failures"] == 5
    assert timedelta(seconds=16) < lane["paused_until"] - clock.now() < timedelta(seconds=31)
    assert lane["due_at"] >= lane["paused_until"]
    assert sum(row["attempts"] for row in world.deliveries(webhook)) == 5


def test_a_pause_ends_with_one_probe_and_a_failed_probe_doubles_it(world: World) -> None:
    with Receiver(http_answer(500)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(8)
        world.turn(webhook)
        _end_pause(world, webhook)
        world.turn(webhook)
        assert len(receiver.requests) == 6
    lane = world.lane(webhook)
    assert timedelta(seconds=35) < lane["paused_until"] - clock.now() < timedelta(seconds=61)


def _end_pause(world: World, webhook: UUID) -> None:
    world.run("UPDATE lanes SET paused_until = clock_timestamp() WHERE webhook_id = :w", w=webhook)


def test_what_the_old_url_answers_does_not_count_against_the_new(world: World) -> None:
    changed = threading.Event()

    def gone_once_changed(_: Request) -> bytes:
        world.change(webhook, url="http://127.0.0.1:9/new")
        changed.set()
        return http_answer(410)

    with Receiver(gone_once_changed) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit()
        world.turn(webhook)
    assert changed.is_set()
    (hook,) = world.rows("SELECT * FROM webhooks WHERE id = :w", w=webhook)
    assert (hook["status"], hook["url"]) == ("enabled", "http://127.0.0.1:9/***")
    (row,) = world.deliveries(webhook)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert world.lane(webhook)["failing_since"] is None


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as answering:
        yield answering


def test_what_comes_while_a_webhook_is_held_is_sent_after_its_release(
    world: World, receiver: Receiver
) -> None:
    webhook = world.webhook(receiver.url())
    world.emit(2)
    world.change(webhook, held=True)
    world.emit(3)
    world.turn(webhook)
    assert receiver.requests == []
    books = world.books(webhook)
    assert (books["accepted"], books["pending"], books["balanced"]) == (5, 5, True)
    assert world.lane(webhook)["consecutive_failures"] == 0

    world.change(webhook, held=False)
    for _ in range(5):
        world.turn(webhook)

    assert len(receiver.requests) == 5
    books = world.books(webhook)
    assert (books["succeeded"], books["pending"], books["balanced"]) == (5, 0, True)
    assert [row["sequence"] for row in world.deliveries(webhook)] == [1, 2, 3, 4, 5]


def test_a_test_goes_to_a_held_webhook(world: World, receiver: Receiver) -> None:
    webhook = world.webhook(receiver.url())
    world.change(webhook, held=True)
    world.emit(2)
    with world.database.transaction(world.tenant_id) as session:
        replay.fire_test(session, world.caller, webhook)
    world.turn(webhook)
    world.turn(webhook)

    assert len(receiver.requests) == 1
    assert world.books(webhook)["tests"]["succeeded"] == 1
    assert world.books(webhook)["pending"] == 2


def test_disabling_a_held_webhook_cancels_what_it_kept(world: World, receiver: Receiver) -> None:
    webhook = world.webhook(receiver.url())
    world.change(webhook, held=True)
    world.emit(3)
    world.change(webhook, status="disabled")

    books = world.books(webhook)
    assert (books["accepted"], books["cancelled"], books["balanced"]) == (3, 3, True)
