"""Messages: done, dropped, and after a Redis that was lost; a worker's start and end."""

import json
import logging
import time
from contextlib import ExitStack
from threading import Barrier

import pytest
import structlog
from dramatiq import Worker

from app.errors import Unavailable
from app.queue import Bell
from jobs.process import broker
from jobs.process.broker import BellBroker
from jobs.process.middleware import Lifetime
from tests.jobs.broker.working import TENANT, Seen, declare, message, working
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


def test_a_message_sent_past_the_bell_is_refused(own_valkey: OwnValkey) -> None:
    broker = BellBroker(own_valkey.url)
    actor = declare(broker, "sweep", print)

    with pytest.raises(TypeError, match=r"app\.queue\.Bell"):
        actor.send()


def test_unreadable_messages_are_dropped_and_the_rest_is_done(
    own_valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen = Seen()
    rubbish = {
        "a": b"not JSON",
        "b": b"\xff\xfe",
        "c": b"[]",
        "d": b"null",
        "e": json.dumps({"queue_name": "jobs"}).encode(),
        "f": message(options=[]),
        "g": message(options={"redis_message_id": 7}),
        "h": message(actor_name="nobody", options={"redis_message_id": "h"}),
        "i": message(args=["one", "too", "many"], options={"redis_message_id": "i"}),
        "j": message(args=5, options={"redis_message_id": "j"}),
        "k": message(queue_name="elsewhere", options={"redis_message_id": "k"}),
        "l": message(args=[TENANT, "x"], kwargs=3, options={"redis_message_id": "l"}),
        "m": message(args=[TENANT, "x"], options={"redis_message_id": "m", "max_age": "old"}),
        "n": message(args=[TENANT, "x"], options={"redis_message_id": "n", "eta": 9e12}),
        "o": message(args=[TENANT, "x"], options={"redis_message_id": "o", "throws": "all"}),
        "p": message(message_id=["p"], options={"redis_message_id": "p"}),
        "q": message(actor_name=["q"], options={"redis_message_id": "q"}),
        "r": message(message_timestamp="r", options={"redis_message_id": "r", "max_age": 1}),
    }
    own_valkey.client.hset("dramatiq:jobs.msgs", mapping=rubbish)
    own_valkey.client.rpush("dramatiq:jobs", "no such message", *rubbish)
    with working(own_valkey, threads=1, run_job=seen.note):
        Bell(own_valkey.url).ring("run_job", (TENANT, "good"))
        # Sooner than a poll of one whose bell has rung.
        until(lambda: (TENANT, "good") in seen.calls, 15.0)
    # Dramatiq begins a consumer that an error has ended anew, after a pause.
    assert "Restarting consumer" not in caplog.text


def test_a_ring_for_an_actor_of_a_later_release_is_dropped_with_one_line(
    own_valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    bell = Bell(own_valkey.url)
    bell.ring("check_master_keys", ())
    with working(own_valkey, sweep=seen.note):
        bell.ring("sweep", ())
        until(lambda: seen.calls == [()])
        # Not kept for another worker, nor as a dead letter.
        until(lambda: not [key for key in own_valkey.client.scan_iter() if b"tick" in key])
    (line,) = [line for line in caplog.records if "check_master_keys" in line.getMessage()]
    assert (line.levelname, "undefined actor" in line.getMessage()) == ("ERROR", True)


def test_a_failed_message_is_not_kept_and_its_secret_not_logged(
    own_valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_tenant: str, _job: str) -> None:
        try:
            raise ValueError("password=hunter2")
        except ValueError as error:
            raise RuntimeError("token=hunter2") from error

    with structlog.testing.capture_logs() as lines, working(own_valkey, run_job=fail):
        Bell(own_valkey.url).ring("run_job", (TENANT, "bad"))
        until(lambda: any(line["event"] == "message_failed" for line in lines))
        until(lambda: own_valkey.client.hlen("dramatiq:jobs.msgs") == 0)

    (line,) = [line for line in lines if line["event"] == "message_failed"]
    assert line["error"] == "RuntimeError < ValueError"
    assert any(where.endswith(" fail") for where in line["at"])
    assert "hunter2" not in caplog.text + repr(lines)
    assert not [key for key in own_valkey.client.scan_iter() if b".XQ" in key]


def test_a_database_that_is_away_is_said_and_is_no_failure_of_the_service(
    own_valkey: OwnValkey,
) -> None:
    def fail(_: str) -> None:
        raise Unavailable("hunter2")

    with structlog.testing.capture_logs() as lines, working(own_valkey, run_job=fail):
        Bell(own_valkey.url).ring("run_job", ("1",))
        until(lambda: any(line["event"] == "database_unavailable" for line in lines))
        until(lambda: own_valkey.client.hlen("dramatiq:jobs.msgs") == 0)
    assert not any(line["event"] == "message_failed" for line in lines)
    assert "hunter2" not in repr(lines)


def test_a_tick_that_was_not_taken_in_time_is_dropped(own_valkey: OwnValkey) -> None:
    seen = Seen()
    bell = Bell(own_valkey.url)
    bell.ring_many("sweep", [()] * 50, max_age_ms=1)
    with working(own_valkey, sweep=seen.note):
        until(lambda: own_valkey.client.hlen("dramatiq:tick.msgs") == 0)
        assert seen.calls == []
        bell.ring("sweep", (), max_age_ms=60_000)
        until(lambda: seen.calls == [()])


# What is heard or found by itself takes a second or two; who does neither looks after twenty.
BEFORE_UNBIDDEN = 15.0


def test_a_worker_that_hears_nothing_still_finds_messages(own_valkey: OwnValkey) -> None:
    seen = Seen()
    with working(own_valkey, run_job=seen.note):
        until(lambda: own_valkey.client.pubsub_numsub("bell")[0][1])
        own_valkey.client.execute_command("ACL SETUSER default resetchannels")
        own_valkey.client.client_kill_filter(_type="pubsub", skipme=True)
        unheard = message(options={"redis_message_id": "unheard"})
        own_valkey.client.hset("dramatiq:jobs.msgs", "unheard", unheard)
        own_valkey.client.rpush("dramatiq:jobs", "unheard")
        until(lambda: seen.calls, BEFORE_UNBIDDEN)


def test_a_flushed_redis_leaves_a_worker_that_works(own_valkey: OwnValkey) -> None:
    seen = Seen()
    with working(own_valkey, run_job=seen.note):
        Bell(own_valkey.url).ring("run_job", (TENANT, "before"))
        until(lambda: seen.calls)
        own_valkey.client.flushall()
        Bell(own_valkey.url).ring("run_job", (TENANT, "after"))
        until(lambda: len(seen.calls) == 2, BEFORE_UNBIDDEN)


@pytest.mark.parametrize("emptied", [False, True], ids=["as it was", "empty"])
def test_a_redis_that_comes_back_is_found_again(own_valkey: OwnValkey, emptied: bool) -> None:
    seen = Seen()
    bell = Bell(own_valkey.url)
    with working(own_valkey, run_job=seen.note):
        bell.ring("run_job", (TENANT, "before"))
        until(lambda: seen.calls)
        with structlog.testing.capture_logs() as lines, own_valkey.away(emptied=emptied):
            # The worker looks once more when the bell falls silent.
            until(
                lambda: (
                    {"wakeup_subscription_lost", "queue_unavailable"}
                    <= {line["event"] for line in lines}
                )
            )
        lost = [line for line in lines if line["event"] == "wakeup_subscription_lost"]
        assert {line["reason"] for line in lost} <= {
            "it closed the connection",
            "the connection was reset",
            "the connection was refused",
        }
        bell.ring("run_job", (TENANT, "after"))
        until(lambda: len(seen.calls) == 2, BEFORE_UNBIDDEN)


def test_a_worker_may_start_before_redis_does(own_valkey: OwnValkey) -> None:
    seen = Seen()
    with ExitStack() as running:
        with own_valkey.away():
            lines = running.enter_context(structlog.testing.capture_logs())
            running.enter_context(working(own_valkey, run_job=seen.note))
            until(lambda: any(line["event"] == "queue_unavailable" for line in lines))
        Bell(own_valkey.url).ring("run_job", (TENANT, "job"))
        until(lambda: seen.calls)


def test_a_frozen_redis_holds_no_thread_for_long_and_work_goes_on_after_it(
    own_valkey: OwnValkey,
) -> None:
    seen = Seen()
    together = Barrier(3)

    def run_job(tenant: str, job: str) -> None:
        if job.startswith("held"):
            together.wait(LONG_ENOUGH)
        seen.note(tenant, job)

    bell = Bell(own_valkey.url)
    with working(own_valkey, threads=2, run_job=run_job):
        bell.ring_many("run_job", [(TENANT, f"held {n}") for n in range(2)])
        bell.ring_many("run_job", [(TENANT, f"next {n}") for n in range(2)])
        until(lambda: together.n_waiting == 2)
        until(lambda: own_valkey.client.llen("dramatiq:jobs") == 0)
        with own_valkey.frozen():
            together.wait(LONG_ENOUGH)
            # Four messages, two threads, and a Redis that takes no acknowledgement.
            until(lambda: len(seen.calls) == 4)
        bell.ring("run_job", (TENANT, "afterwards"))
        until(lambda: len(seen.calls) == 5)

    assert len(set(seen.calls)) == 5


def test_the_messages_of_a_worker_that_died_are_done_by_another(
    own_valkey: OwnValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "_MAINTENANCE_CHANCE", 1_000_000)
    seen = Seen()
    Bell(own_valkey.url).ring("run_job", (TENANT, "orphan"))
    orphan = own_valkey.client.lpop("dramatiq:jobs")
    long_ago = (time.time() - 61) * 1000
    own_valkey.client.sadd("dramatiq:__acks__.the-dead.jobs", orphan)
    own_valkey.client.zadd("dramatiq:__heartbeats__", {"the-dead": long_ago})
    with working(own_valkey, run_job=seen.note):
        until(lambda: seen.calls == [(TENANT, "orphan")])


def test_a_worker_that_stops_gives_back_what_it_did_not_begin(own_valkey: OwnValkey) -> None:
    seen = Seen()
    began = Barrier(2)

    def run_job(tenant: str, job: str) -> None:
        if job == "0":
            began.wait(LONG_ENOUGH)
        seen.note(tenant, job)
        until(lambda: len(seen.calls) > 0 and worker.workers[0].running is False)

    Bell(own_valkey.url).ring_many("run_job", [(TENANT, str(n)) for n in range(20)])
    with working(own_valkey, threads=1, run_job=run_job) as worker:
        began.wait(LONG_ENOUGH)

    assert [job for _, job in seen.calls] == ["0"]
    assert own_valkey.client.llen("dramatiq:jobs") == 19


def test_what_a_process_needs_is_opened_before_its_first_message_and_closed_after_its_last(
    own_valkey: OwnValkey,
) -> None:
    seen = Seen()
    Bell(own_valkey.url).ring("sweep", ())
    lifetime = Lifetime(
        lambda threads: seen.note("open", str(threads)), lambda: seen.note("closed")
    )
    bell = BellBroker(own_valkey.url, [lifetime])
    declare(bell, "sweep", lambda: seen.note("work"))
    worker = Worker(bell, worker_threads=2, worker_timeout=100)
    worker.start()
    until(lambda: ("work",) in seen.calls)
    worker.stop()
    bell.close()

    assert seen.calls == [("open", "2"), ("work",), ("closed",)]


def test_a_process_that_cannot_open_what_it_needs_ends(own_valkey: OwnValkey) -> None:
    def fail(_threads: int) -> None:
        raise OSError("no database")

    dying = BellBroker(own_valkey.url, [Lifetime(fail, lambda: None)])

    with pytest.raises(SystemExit):
        Worker(dying, worker_threads=1).start()
