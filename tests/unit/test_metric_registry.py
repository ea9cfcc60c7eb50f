"""Counting in memory: exact from many threads, and every value in the bucket it belongs to."""

import threading

import pytest

from app import metrics
from app.lib.metric_registry import Counter, Histogram, Tally

CLICKS = Counter("clicks", "Clicks.", labels=("where",))
SECONDS = Histogram("seconds", "Seconds.", bounds=(0.1, 1, 5), labels=("what",))


def test_no_count_is_lost_between_threads() -> None:
    tally = Tally()
    ready = threading.Barrier(8)

    def click() -> None:
        ready.wait()
        for _ in range(2_000):
            tally.add(CLICKS, "here")
            tally.observe(SECONDS, 0.5, "wait")

    threads = [threading.Thread(target=click) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.figures() == {
        ("clicks_total", ("here",)): 16_000,
        ("seconds_bucket", ("wait", "1.0")): 16_000,
        ("seconds_sum", ("wait",)): 8_000,
    }


def test_counting_nothing_leaves_no_trace() -> None:
    tally = Tally()
    tally.add(CLICKS, "here", count=0)
    assert tally.figures() == {}
    assert tally.value(CLICKS, "here") == 0


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, "0.1"), (0.1, "0.1"), (0.1001, "1.0"), (5, "5.0"), (5.1, "+Inf"), (1e9, "+Inf")],
)
def test_a_bucket_holds_its_upper_end(value: float, bucket: str) -> None:
    assert SECONDS.bucket_of(value) == bucket


def test_a_time_that_ran_backwards_counts_as_none() -> None:
    tally = Tally()
    tally.observe(SECONDS, -0.5, "wait")
    assert tally.figures()["seconds_sum", ("wait",)] == 0


def test_the_catalogue_keeps_to_prometheus_s_names() -> None:
    names = [each.name for each in metrics.COUNTERS]
    names += [each.name for each in metrics.HISTOGRAMS]
    assert len(names) == len(set(names)) > 20
    assert [name for name in names if name.endswith("_total")] == []
    assert [each.name for each in metrics.HISTOGRAMS if not each.name.endswith("_seconds")] == []
    for counter in metrics.COUNTERS:
        assert all(len(labels) == len(counter.labels) for labels in counter.known)
    for histogram in metrics.HISTOGRAMS:
        assert list(histogram.bounds) == sorted(set(histogram.bounds))
