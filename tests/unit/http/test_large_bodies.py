"""The bulkhead for large work: few at work, few in line, and never all of it one tenant's."""

import threading
from contextlib import ExitStack, suppress

import pytest

from app.lib import fair_shares
from app.lib.fair_shares import NoShare, Places
from tests.support.faults import until


def queue(work: Places, whose: str, entered: threading.Semaphore) -> None:
    """Have one more request enter and leave; return once it is at work or in line."""
    before = work.at_work.total() + work.in_line.total()

    def enter() -> None:
        # One that still waits when the test has ended is refused.
        with suppress(NoShare), work.held(whose):
            entered.release()

    threading.Thread(target=enter, daemon=True).start()
    until(lambda: entered._value > 0 or work.at_work.total() + work.in_line.total() > before)


@pytest.mark.parametrize("at_once", [1, 2])
def test_one_tenant_never_has_every_place_at_work(at_once: int) -> None:
    work, entered = Places(at_once, 6), threading.Semaphore(0)
    with work.held("a"):
        queue(work, "a", entered)
        with ExitStack() as others:
            if at_once > 1:
                others.enter_context(work.held("b"))
            assert not entered.acquire(blocking=False)
    assert entered.acquire(timeout=60)


def test_places_in_line_are_left_for_tenants_that_have_none() -> None:
    work, entered = Places(2, 6), threading.Semaphore(0)
    with work.held("a"), work.held("b"):
        for _ in range(4):
            queue(work, "a", entered)
        with pytest.raises(NoShare), work.held("a"):
            pass
        queue(work, "b", entered)
        queue(work, "c", entered)
        with pytest.raises(NoShare), work.held("d"):
            pass
    assert entered.acquire(timeout=60)


def test_no_request_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_shares, "_WAIT_SECONDS", 0.01)
    work = Places(2, 6)
    with work.held("a"), pytest.raises(NoShare), work.held("a"):
        pass
    assert not work.at_work + work.in_line
    with work.held("a"):
        pass
