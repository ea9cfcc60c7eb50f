"""What a process bounds: rates of callers, large work, and renderings kept for a moment."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from app.api.http import answers
from app.api.http.answers import Renderings
from app.lib import fair_shares
from app.lib.fair_shares import NoShare, Places
from app.lib.rates import Counter, Rate
from tests.support.faults import until


def counter(rate: Rate, now: list[float]) -> Counter:
    return Counter(rate, "by this caller", clock=lambda: now[0])


def test_a_new_window_begins_with_a_full_measure() -> None:
    now = [59.5]
    counted = counter(Rate(2, 60), now)

    assert [counted.hit(b"a").exceeded for _ in range(3)] == [False, False, True]
    assert counted.hit(b"a").resets_in == 1
    assert not counted.hit(b"b").exceeded
    now[0] = 60.0
    assert not counted.hit(b"a").exceeded


def test_a_flood_of_callers_resets_no_count() -> None:
    counted = counter(Rate(3, 60), [0.0])
    assert [counted.hit(b"the one").exceeded for _ in range(4)] == [False, False, False, True]
    for number in range(150_000):
        counted.hit(number.to_bytes(16, "big"))
    assert counted.hit(b"the one").exceeded


def test_a_flood_of_callers_takes_no_more_memory_than_one() -> None:
    counted = counter(Rate(1, 60), [0.0])
    sizes = set()
    for number in range(20_000):
        counted.hit(number.to_bytes(16, "big"))
        sizes.add(counted._cells.buffer_info()[1] * counted._cells.itemsize)
    assert sizes == {2**20}


def test_many_others_cost_a_caller_next_to_nothing_of_its_rate() -> None:
    counted = counter(Rate(1_000, 60), [0.0])
    for number in range(100_000):
        counted.hit(number.to_bytes(16, "big"))
    # e/WIDTH x N; the chance that these ten are all counted too high is e^-40.
    counts = [counted.hit(f"caller {n}".encode()).count for n in range(10)]
    assert min(counts) <= 1 + 2.72 / 2**15 * 100_000


@pytest.mark.parametrize("rate", ["300 per minute", "300/minute", "300 per second", "300/day"])
def test_a_rate_is_a_number_and_a_unit(rate: str) -> None:
    assert Rate.parse(rate).limit == 300


@pytest.mark.parametrize("rate", ["", "0 per minute", "-1/minute", "many", "5 per fortnight", "5"])
def test_any_other_text_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="300 per minute"):
        Rate.parse(rate)


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


TEXT = b'{"activity":{}}' * 10_000


def in_parts(whole: bytes) -> Iterator[bytes]:
    return (whole[start : start + 4096] for start in range(0, len(whole), 4096))


def read(kept: Iterator[bytes] | None) -> bytes | None:
    return None if kept is None else b"".join(kept)


@pytest.mark.parametrize("whole", [b"", b"1", TEXT, os.urandom(100_000)])
def test_what_is_kept_is_what_was_made(whole: bytes) -> None:
    renderings = Renderings(1024 * 1024)
    made, complete = renderings.made("etag", in_parts(whole))

    assert complete
    assert read(made) == whole
    assert read(renderings.get("etag")) == whole
    assert renderings.get("another") is None


def test_what_is_too_large_to_be_kept_is_given_out_all_the_same() -> None:
    whole = os.urandom(100_000)
    renderings = Renderings(100_000)
    made, complete = renderings.made("etag", in_parts(whole))

    assert not complete
    assert read(made) == whole
    assert renderings.get("etag") is None


def test_the_oldest_makes_room_for_the_newest() -> None:
    renderings = Renderings(100_000)
    for number in range(5):
        renderings.made(str(number), in_parts(os.urandom(30_000)))

    kept = [number for number in range(5) if renderings.get(str(number)) is not None]
    assert kept == [2, 3, 4]


def test_making_it_again_counts_it_once() -> None:
    renderings = Renderings(100_000)
    whole = os.urandom(40_000)
    for _ in range(10):
        renderings.made("etag", in_parts(whole))

    assert read(renderings.get("etag")) == whole


def test_nothing_is_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    renderings = Renderings(1024 * 1024)
    monkeypatch.setattr(answers, "KEPT_SECONDS", 0.0)
    renderings.made("etag", in_parts(TEXT))

    assert renderings.get("etag") is None
    assert not renderings._kept
