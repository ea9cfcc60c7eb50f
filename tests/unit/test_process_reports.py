"""What processes report of themselves, on a real Valkey."""

import json
import os
from dataclasses import replace

from app import heartbeats, metrics
from app.heartbeats import Process
from app.lib.process import resident_bytes
from app.queue import Bell
from app.settings import VERSION
from tests.support.faults import OwnValkey, until

OTHER = Process("worker", "elsewhere", 7, "0.0.1", 5_000, pool_size=10, pool_in_use=3)


def test_each_process_is_listed_with_what_it_reported_last(own_valkey: OwnValkey) -> None:
    bell = Bell(own_valkey.url)
    assert bell.processes() == []
    mine = heartbeats.this_process("web", pool_size=4, pool_in_use=1)
    assert (mine.pid, mine.version) == (os.getpid(), VERSION)
    for each in (OTHER, mine, replace(OTHER, pool_in_use=4)):
        bell.report(each)
    seen = bell.processes()
    assert seen is not None
    assert sorted(seen, key=lambda each: each.role) == [mine, replace(OTHER, pool_in_use=4)]
    bell.close()


def test_a_process_that_is_gone_is_forgotten(own_valkey: OwnValkey) -> None:
    bell = Bell(own_valkey.url)
    bell.report(OTHER)
    (name,) = own_valkey.client.smembers("processes")
    assert own_valkey.client.pttl(name) > 0
    own_valkey.client.delete(name)
    assert bell.processes() == []
    assert own_valkey.client.exists("processes") == 0
    bell.close()


def test_what_another_release_reports_otherwise_is_left_out(own_valkey: OwnValkey) -> None:
    own_valkey.client.set("process:later", json.dumps({"role": "web", "cores": 4}))
    own_valkey.client.set("process:rubbish", b"\xff{")
    own_valkey.client.sadd("processes", "process:later", "process:rubbish")
    bell = Bell(own_valkey.url)
    bell.report(OTHER)
    assert bell.processes() == [OTHER]
    bell.close()


def test_without_redis_nothing_is_reported_and_nothing_counted() -> None:
    bell = Bell(None)
    bell.report(OTHER)
    assert bell.tally.value(metrics.BELL_SKIPPED) == 0
    assert bell.processes() is None


def test_the_memory_reported_is_what_the_process_holds() -> None:
    before = resident_bytes()
    held = b"x" * (64 << 20)
    until(lambda: resident_bytes() > before + (32 << 20))
    assert len(held) == 64 << 20
