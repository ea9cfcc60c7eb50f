"""The bulkhead for large work: few at work, few in line, and never all of it one tenant's."""

import threading
from contextlib import suppress

import pytest

from app.api.http import large_work
from app.api.http.large_work import LargeWork
from app.errors import Busy
from tests.support.faults import until


def queue(work: LargeWork, whose: str, entered: threading.Semaphore) -> threading.Thread:
    """Have one more request enter and stay; return once it is at work or in line."""
    before = held(work)

    def enter() -> None:
        # One that still waits when the test has ended is refused.
        with suppress(Busy):
            work.enter(whose)
            entered.release()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    until(lambda: held(work) > before)
    return thread


def held(work: LargeWork) -> int:
    return work._at_work.total() + work._in_line.total()


def test_one_tenant_never_has_every_place_at_work() -> None:
    work = LargeWork(at_once=2, waiting=6)
    work.enter("a")
    entered = threading.Semaphore(0)
    queue(work, "a", entered)

    work.enter("b")

    assert not entered.acquire(blocking=False)
    work.leave("a")
    assert entered.acquire(timeout=60)


def test_a_request_beyond_the_line_is_refused_at_once() -> None:
    work = LargeWork(at_once=2, waiting=6)
    work.enter("a")
    entered = threading.Semaphore(0)
    for _ in range(4):
        queue(work, "a", entered)

    with pytest.raises(Busy):
        work.enter("a")


def test_places_in_line_are_left_for_tenants_that_have_none() -> None:
    work = LargeWork(at_once=2, waiting=6)
    work.enter("a")
    work.enter("b")
    entered = threading.Semaphore(0)
    for _ in range(4):
        queue(work, "a", entered)

    queue(work, "b", entered)
    queue(work, "c", entered)
    with pytest.raises(Busy):
        work.enter("d")

    work.leave("b")
    assert entered.acquire(timeout=60)


def test_a_work_for_one_takes_one_after_the_other() -> None:
    work = LargeWork(at_once=1, waiting=1)
    entered = threading.Semaphore(0)
    work.enter("a")
    queue(work, "a", entered)
    work.leave("a")
    assert entered.acquire(timeout=60)


def test_no_request_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_work, "_WAIT_SECONDS", 0.01)
    work = LargeWork(at_once=2, waiting=6)
    work.enter("a")

    with pytest.raises(Busy):
        work.enter("a")

    work.leave("a")
    assert held(work) == 0
    work.enter("a")
