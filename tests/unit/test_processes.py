"""Parts of every process: counters, reports, repeated work, batched wake-ups."""

import json
import os
import threading
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from app import heartbeats, metrics, queue
from app.heartbeats import Process
from app.lib.metric_registry import Counter, Histogram, Tally
from app.lib.process import resident_bytes
from app.lib.repeater import Repeater
from app.queue import Bell, WakeupBatcher, queue_key
from app.settings import VERSION
from tests.support.faults import LONG_ENOUGH, Hands, OwnValkey, at_once, until

CLICKS = Counter("clicks", "Clicks.", labels=("where",))
SECONDS = Histogram("seconds", "Seconds.", bounds=(0.1, 1, 5), labels=("what",))


def test_no_count_is_lost_between_threads() -> None:
    tally = Tally()

    def click(_: int) -> None:
        for _ in range(2_000):
            tally.add(CLICKS, "here")
            tally.observe(SECONDS, 0.5, "wait")

    at_once(8, click)
    assert tally.figures() == {
        ("clicks_total", ("here",)): 16_000,
        ("seconds_bucket", ("wait", "1.0")): 16_000,
        ("seconds_sum", ("wait",)): 8_000,
    }


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, "0.1"), (0.1, "0.1"), (0.1001, "1.0"), (5, "5.0"), (5.1, "+Inf"), (1e9, "+Inf")],
)
def test_a_bucket_holds_its_upper_end(value: float, bucket: str) -> None:
    assert SECONDS.bucket_of(value) == bucket
    tally = Tally()
    tally.observe(SECONDS, -value, "wait")
    assert tally.figures()["seconds_sum", ("wait",)] == 0, "a time that ran backwards"


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


OTHER = Process("worker", "elsewhere", 7, "0.0.1", 5_000, pool_size=10, pool_in_use=3)


def test_processes_are_listed_with_their_last_report_until_they_are_gone(
    own_valkey: OwnValkey,
) -> None:
    bell = Bell(own_valkey.url)
    assert bell.processes() == []
    before = resident_bytes()
    held = b"x" * (64 << 20)
    until(lambda: resident_bytes() > before + (len(held) >> 1))
    mine = heartbeats.Process("web", pool_size=4, pool_in_use=1)
    assert (mine.pid, mine.version) == (os.getpid(), VERSION)
    for each in (OTHER, mine, replace(OTHER, pool_in_use=4)):
        bell.report(each)
    # What another release reports otherwise is left out.
    own_valkey.client.set("process:later", json.dumps({"role": "web", "cores": 4}))
    own_valkey.client.set("process:rubbish", b"\xff{")
    own_valkey.client.sadd("processes", "process:later", "process:rubbish")
    seen = bell.processes()
    assert seen is not None
    assert sorted(seen, key=lambda each: each.role) == [mine, replace(OTHER, pool_in_use=4)]
    for name in own_valkey.client.smembers("processes"):
        own_valkey.client.delete(name)
    assert bell.processes() == []
    bell.close()


def test_without_redis_nothing_is_reported_and_nothing_counted() -> None:
    bell = Bell(None)
    bell.report(OTHER)
    assert bell.tally.value(metrics.BELL_SKIPPED) == 0
    assert bell.processes() is None


LONG = 60.0


def test_errors_are_logged_once_until_the_work_succeeds_again() -> None:
    results = iter([ValueError, ValueError, None, ValueError])

    def work() -> None:
        if (error := next(results)) is not None:
            raise error

    repeater = Repeater("test", work, LONG, failed="it_failed")
    with capture_logs() as logged:
        assert [repeater.work() for _ in range(4)] == [False, False, True, False]
    assert [(line["event"], line["error"]) for line in logged] == [("it_failed", "ValueError")] * 2


def test_one_thread_works_however_often_it_is_begun_and_once_more_at_the_end() -> None:
    worked = threading.Semaphore(0)
    repeater = Repeater("test", worked.release, LONG, failed="it_failed", at_end=1.0)
    assert [repeater.begin() for _ in range(3)] == [True, False, False]
    assert worked.acquire(timeout=LONG)
    repeater.close(LONG)
    assert worked.acquire(timeout=0)
    assert not worked.acquire(timeout=0)


def rung(valkey: OwnValkey) -> list[UUID]:
    """Return the webhooks that were rung."""
    messages = valkey.client.hvals(f"{queue_key('deliver')}.msgs")
    return [UUID(json.loads(message)["args"][1]) for message in messages]


def test_every_lane_is_rung_once(own_valkey: OwnValkey) -> None:
    batcher = WakeupBatcher(Bell(own_valkey.url))
    lanes = [(uuid4(), uuid4()) for _ in range(200)]
    for lane in lanes * 3:
        batcher.ring([lane])
    batcher.close()
    assert sorted(rung(own_valkey)) == sorted(webhook for _, webhook in lanes)


def test_no_caller_waits_for_a_frozen_redis(
    own_valkey: OwnValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For ever, as far as this test is concerned.
    monkeypatch.setattr(queue, "_TIMEOUT_SECONDS", 100 * LONG_ENOUGH)
    batcher = WakeupBatcher(Bell(own_valkey.url))
    with own_valkey.frozen():
        for _ in range(100):
            batcher.ring([(uuid4(), uuid4())])
    batcher.close()


def test_a_redis_that_comes_back_is_rung_again(own_valkey: OwnValkey) -> None:
    clock = Hands()
    bell = Bell(own_valkey.url, clock=clock)
    batcher = WakeupBatcher(bell)
    with own_valkey.away():
        batcher.ring([(uuid4(), uuid4())])
        until(lambda: bell.tally.value(metrics.BELL_ERRORS))
    clock.forward(6)
    lane = (uuid4(), uuid4())

    def ring_and_see() -> bool:
        batcher.ring([lane])
        return lane[1] in rung(own_valkey)

    until(ring_and_see)
    batcher.close()
