"""The bulkhead for large work: few at work, few in line, and never all of it one tenant's."""

import gc
import threading
from contextlib import suppress

import pytest

from app.api.http import bulkhead
from app.api.http.bulkhead import Room
from app.errors import Busy
from tests.support.faults import until


def queue(room: Room, whose: str, entered: threading.Semaphore) -> threading.Thread:
    """Have one more request enter and stay; return once it is at work or in line."""
    before = held(room)

    def enter() -> None:
        # One that still waits when the test has ended is refused.
        with suppress(Busy):
            room.enter(whose)
            entered.release()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    until(lambda: held(room) > before)
    return thread


def held(room: Room) -> int:
    return room._at_work.total() + room._in_line.total()


def test_one_tenant_never_has_every_place_at_work() -> None:
    room = Room(at_once=2, waiting=6)
    room.enter("a")
    entered = threading.Semaphore(0)
    queue(room, "a", entered)

    room.enter("b")

    assert not entered.acquire(blocking=False)
    room.leave("a")
    assert entered.acquire(timeout=60)


def test_a_request_beyond_the_line_is_refused_at_once() -> None:
    room = Room(at_once=2, waiting=6)
    room.enter("a")
    entered = threading.Semaphore(0)
    for _ in range(4):
        queue(room, "a", entered)

    with pytest.raises(Busy):
        room.enter("a")


def test_places_in_line_are_left_for_tenants_that_have_none() -> None:
    room = Room(at_once=2, waiting=6)
    room.enter("a")
    room.enter("b")
    entered = threading.Semaphore(0)
    for _ in range(4):
        queue(room, "a", entered)

    queue(room, "b", entered)
    queue(room, "c", entered)
    with pytest.raises(Busy):
        room.enter("d")

    room.leave("b")
    assert entered.acquire(timeout=60)


def test_a_room_for_one_takes_one_after_the_other() -> None:
    room = Room(at_once=1, waiting=1)
    entered = threading.Semaphore(0)
    room.enter("a")
    queue(room, "a", entered)
    room.leave("a")
    assert entered.acquire(timeout=60)


def test_full_garbage_collections_are_seldom_while_large_work_is_done() -> None:
    # Not what holds now: rooms of other tests may still be full.
    usual = bulkhead._USUAL_GARBAGE
    room = Room(at_once=2, waiting=6)
    room.enter("a")
    room.enter("b")
    room.leave("a")
    assert gc.get_threshold()[:2] == usual[:2]
    assert gc.get_threshold()[2] > usual[2]
    room.leave("b")
    assert gc.get_threshold() == usual


def test_no_request_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulkhead, "_WAIT_SECONDS", 0.01)
    room = Room(at_once=2, waiting=6)
    room.enter("a")

    with pytest.raises(Busy):
        room.enter("a")

    room.leave("a")
    assert held(room) == 0
    room.enter("a")
