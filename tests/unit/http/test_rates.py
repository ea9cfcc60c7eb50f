"""Rates as they are written, and counting callers against them."""

import pytest

from app.lib.rates import Counter, Rate


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
