"""Room for what is large: two at once, others wait, and nobody waits for ever."""

import threading

import pytest

from app.api import heavy
from app.errors import Busy


def test_what_is_small_needs_no_room() -> None:
    with heavy.room_for(heavy.LARGE + 1), heavy.room_for(heavy.LARGE + 1), heavy.room_for(1):
        pass


def test_a_third_waits_until_somebody_leaves() -> None:
    inside, leave = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        with heavy.room_for(heavy.LARGE + 1):
            inside.release()
            leave.wait(60)

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(heavy.AT_ONCE):
        assert inside.acquire(timeout=60)
    assert not inside.acquire(blocking=False)
    leave.set()
    assert inside.acquire(timeout=60)
    for thread in threads:
        thread.join()


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heavy, "_WAIT_SECONDS", 0.01)
    large = heavy.LARGE + 1
    with (
        heavy.room_for(large),
        heavy.room_for(large),
        pytest.raises(Busy),
        heavy.room_for(large),
    ):
        pass
    with heavy.room_for(large):
        pass
