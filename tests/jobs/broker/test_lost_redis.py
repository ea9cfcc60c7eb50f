"""A worker goes on after a Redis that was silent, empty, away or frozen."""

from contextlib import ExitStack
from threading import Barrier

import pytest
import structlog

from app.queue import Bell
from tests.jobs.broker.working import TENANT, Seen, message, working
from tests.support.faults import LONG_ENOUGH, OwnValkey, until

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
