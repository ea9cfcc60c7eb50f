"""A worker hears each ring, and takes ticks before jobs and jobs before deliveries."""

import time
from threading import Barrier

import pytest

from app.queue import ACTORS, Bell
from jobs.process.broker import PRIORITIES, BellBroker
from tests.jobs.broker.working import TENANT, Seen, declare, working
from tests.support.faults import LONG_ENOUGH, OwnValkey, until


def evalsha_calls(valkey: OwnValkey) -> int:
    """Count the scripts run so far."""
    return int(valkey.client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def test_a_worker_does_what_the_bell_rings(own_valkey: OwnValkey) -> None:
    seen = Seen()
    with working(own_valkey, run_job=seen.note):
        Bell(own_valkey.url).ring("run_job", (TENANT, "job"))
        until(lambda: seen.calls)

    assert seen.calls == [(TENANT, "job")]
    assert own_valkey.client.hlen("dramatiq:jobs.msgs") == 0


def test_messages_that_waited_for_a_worker_are_done(own_valkey: OwnValkey) -> None:
    seen = Seen()
    Bell(own_valkey.url).ring_many("run_job", [(TENANT, str(n)) for n in range(1_000)])
    with working(own_valkey, run_job=seen.note):
        until(lambda: len(seen.calls) >= 1_000)

    assert {job for _, job in seen.calls} == {str(n) for n in range(1_000)}
    assert len(seen.calls) == 1_000
    assert own_valkey.client.hlen("dramatiq:jobs.msgs") == 0


def test_an_idle_worker_hears_each_ring_and_asks_hardly_ever_unbidden(
    own_valkey: OwnValkey,
) -> None:
    seen = Seen()
    bell = Bell(own_valkey.url)
    with working(own_valkey, deliver=seen.note, run_job=print, sweep=print):
        until(lambda: own_valkey.client.pubsub_numsub("bell")[0][1])
        began = time.monotonic()
        for n in range(100):
            bell.ring("deliver", (TENANT, str(n)))
            until(lambda n=n: len(seen.calls) > n)  # type: ignore[misc]
        # Milliseconds each; who heard none would look every twenty seconds, or every second.
        assert time.monotonic() - began < 60
        asked, began = evalsha_calls(own_valkey), time.monotonic()
        until(lambda: time.monotonic() - began > 2)
        asked, seconds = evalsha_calls(own_valkey) - asked, time.monotonic() - began

    # Usually none; a machine that is slow leaves time for fewer. Who polls asks a hundred times.
    assert asked / seconds < 4


def test_ticks_go_before_jobs_and_jobs_before_deliveries(own_valkey: OwnValkey) -> None:
    seen = Seen()
    Bell(own_valkey.url).ring("run_job", (TENANT, "first"))
    began, ends = Barrier(2), Barrier(2)

    def run_job(*arguments: str) -> None:
        if arguments[1] == "first":
            began.wait(LONG_ENOUGH)
            ends.wait(LONG_ENOUGH)
        seen.note("run_job")

    with working(
        own_valkey,
        threads=1,
        run_job=run_job,
        deliver=lambda *_: seen.note("deliver"),
        sweep=lambda: seen.note("sweep"),
    ) as worker:
        began.wait(LONG_ENOUGH)
        bell = Bell(own_valkey.url)
        bell.ring_many("deliver", [(TENANT, str(n)) for n in range(2)])
        bell.ring_many("run_job", [(TENANT, str(n)) for n in range(1)])
        bell.ring("sweep", ())
        until(lambda: worker.work_queue.qsize() == 4)
        ends.wait(LONG_ENOUGH)
        until(lambda: len(seen.calls) == 5)

    assert [name for (name,) in seen.calls] == ["run_job", "sweep", "run_job", "deliver", "deliver"]


def test_each_queue_that_is_rung_has_a_priority() -> None:
    assert set(ACTORS.values()) == set(PRIORITIES)


def test_a_message_sent_past_the_bell_is_refused(own_valkey: OwnValkey) -> None:
    broker = BellBroker(own_valkey.url)
    actor = declare(broker, "sweep", print)

    with pytest.raises(TypeError, match=r"app\.queue\.Bell"):
        actor.send()
