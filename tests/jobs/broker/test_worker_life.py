"""A worker opens what it needs, shows that it lives, and leaves its messages to others."""

import time
from threading import Barrier

import pytest
from dramatiq import Worker

from app.queue import Bell
from jobs.process import broker
from jobs.process.broker import BellBroker
from jobs.process.middleware import Lifetime
from tests.jobs.broker.working import TENANT, Seen, declare, working
from tests.support.faults import LONG_ENOUGH, OwnValkey, until


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
