"""A held webhook: events are accepted and numbered, nothing is sent, and all once released."""

from collections.abc import Iterator

import pytest

from app.core.replay import replay
from tests.support.servers.receivers import Receiver
from tests.support.workers.worlds import World


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
