"""The clock reconciles Redis with the timetable, and rings what is due."""

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from dramatiq import Message
from hypothesis import given
from hypothesis import strategies as st

from app import heartbeats
from app.queue import connect
from scheduler.clock import TIMEOUT_SECONDS, Clock
from scheduler.timetable import TIMETABLE, Entry
from tests.support.faults import OwnValkey

SCHEDULED = "rq:scheduler:scheduled_jobs"
LOCK = "rq:scheduler_lock"
# Rings once in three hundred years: never while a test runs.
RARE = Entry("prune_history", every=10**10)
SECONDLY = Entry("sweep", every=1)
TABLE = {each.name: each for each in (SECONDLY, RARE)}


@pytest.fixture
def clock(own_valkey: OwnValkey) -> Iterator[Clock]:
    """Return a clock that polls when a test says so."""
    client = connect(own_valkey.url, TIMEOUT_SECONDS)
    yield Clock(client, TABLE)
    client.close()


def rung(client: Any) -> list[str]:
    """Take what was rung so far, in order."""
    ids = client.lrange("dramatiq:tick", 0, -1)
    messages = [Message.decode(client.hget("dramatiq:tick.msgs", each)) for each in ids]
    client.delete("dramatiq:tick", "dramatiq:tick.msgs")
    return [message.actor_name for message in messages]


def polled(clock: Clock, valkey: OwnValkey, due: str = "prune_history") -> list[str]:
    """Poll when an entry is due; return what was rung since the last look."""
    valkey.client.zadd(SCHEDULED, {due: 0})
    clock.poll()
    return rung(valkey.client)


def test_an_entry_rings_when_it_is_due_and_not_before(clock: Clock, own_valkey: OwnValkey) -> None:
    clock.poll()
    rung(own_valkey.client)
    clock.poll()
    assert "prune_history" not in rung(own_valkey.client)

    own_valkey.client.zadd(SCHEDULED, {"prune_history": time.time() - 7200})
    clock.poll()
    assert rung(own_valkey.client).count("prune_history") == 1
    clock.poll()
    assert "prune_history" not in rung(own_valkey.client)


def test_what_rq_schedulers_own_tools_show_is_the_timetable(
    clock: Clock, own_valkey: OwnValkey
) -> None:
    clock.poll()

    shown = {job.id: (job.func_name, job.origin, job.meta) for job in clock.get_jobs()}
    assert shown == {
        "sweep": ("sweep", "tick", {"interval": 1}),
        "prune_history": ("prune_history", "tick", {"interval": 10**10}),
    }


def test_an_emptied_redis_is_filled_again_and_what_was_missed_is_rung(
    clock: Clock, own_valkey: OwnValkey
) -> None:
    clock.poll()
    own_valkey.client.flushall()

    clock.poll()

    assert sorted(rung(own_valkey.client)) == ["prune_history", "sweep"]


def test_entries_that_are_not_in_the_table_are_dropped(clock: Clock, own_valkey: OwnValkey) -> None:
    clock.schedule(datetime.now(UTC), "os.system", args=["true"], id="retired")
    own_valkey.client.zadd(SCHEDULED, {b"\xff\xfe": 0, "never-written": 0, "": 0})

    clock.poll()

    assert set(own_valkey.client.zrange(SCHEDULED, 0, -1)) == {b"sweep", b"prune_history"}
    assert not own_valkey.client.exists("rq:job:retired")
    assert sorted(rung(own_valkey.client)) == ["prune_history", "sweep"]


@pytest.mark.parametrize("moment", ["inf", "9e15"])
def test_a_time_an_entry_cannot_have_is_corrected(
    clock: Clock, own_valkey: OwnValkey, moment: str
) -> None:
    clock.poll()
    own_valkey.client.zadd(SCHEDULED, {"prune_history": moment})

    clock.poll()

    assert own_valkey.client.zscore(SCHEDULED, "prune_history") == RARE.next_after(time.time())


@pytest.mark.parametrize("key", [SCHEDULED, LOCK, "rq:job:sweep", "rq:job:prune_history"])
def test_rubbish_in_the_place_of_a_key_is_replaced(
    clock: Clock, own_valkey: OwnValkey, key: str
) -> None:
    if key.startswith("rq:job:"):
        own_valkey.client.set(key, "rubbish")
    else:
        own_valkey.client.rpush(key, "rubbish")

    clock.poll()
    clock.poll()

    assert sorted(set(rung(own_valkey.client))) == ["prune_history", "sweep"]
    assert len(list(clock.get_jobs())) == 2


def test_a_job_whose_content_is_rubbish_never_stops_the_clock(
    clock: Clock, own_valkey: OwnValkey
) -> None:
    clock.poll()
    rung(own_valkey.client)
    own_valkey.client.hset("rq:job:prune_history", mapping={"data": "rubbish", "meta": "rubbish"})

    assert "prune_history" in polled(clock, own_valkey)


def test_a_lock_of_another_is_not_removed_and_one_without_an_end_is_given_one(
    clock: Clock, own_valkey: OwnValkey
) -> None:
    clock.poll()
    own_valkey.client.set(LOCK, "another", ex=11)

    clock.remove_lock()

    assert own_valkey.client.get(LOCK) == b"another"
    own_valkey.client.set(LOCK, "left behind")
    Clock(own_valkey.client, TABLE).poll()
    assert 0 < own_valkey.client.ttl(LOCK) <= 11


def test_rings_that_age_stop_piling_up_when_no_worker_takes_them_and_no_others_do(
    clock: Clock, own_valkey: OwnValkey
) -> None:
    clock.poll()
    stored = own_valkey.client.hvals("dramatiq:tick.msgs")
    options = {message.actor_name: message.options for message in map(Message.decode, stored)}
    assert options["sweep"]["max_age"] == 5_000
    assert "max_age" not in options["prune_history"]
    for _ in range(200):
        own_valkey.client.zadd(SCHEDULED, {"sweep": 0})
        clock.poll()
    assert own_valkey.client.llen("dramatiq:tick") <= 102

    assert "prune_history" in polled(clock, own_valkey)[-2:]
    assert "sweep" in polled(clock, own_valkey, due="sweep")


def test_an_idle_clock_costs_few_commands(own_valkey: OwnValkey) -> None:
    # Counted for each step, not by the second: how many seconds a window touches is luck.
    table = {RARE.name: RARE}
    with (
        connect(own_valkey.url, TIMEOUT_SECONDS) as one,
        connect(own_valkey.url, TIMEOUT_SECONDS) as other,
    ):
        clock, next_clock = Clock(one, table), Clock(other, table)
        clock.poll()
        poll = commands_of(own_valkey, clock.poll)
        own_valkey.client.zadd(SCHEDULED, {"prune_history": 0})
        ring = commands_of(own_valkey, clock.poll) - poll
        clock.remove_lock()
        beat = commands_of(own_valkey, next_clock.poll) - poll

    assert min(poll, ring, beat) > 0
    rings_a_second = sum(1 / entry.every for entry in TIMETABLE.values())
    assert poll + ring * rings_a_second + beat / heartbeats.EVERY_SECONDS < 12


def commands_of(valkey: OwnValkey, step: Callable[[], None]) -> int:
    """Return how many commands the server is asked in one step."""

    def processed() -> int:
        return int(valkey.client.info("stats")["total_commands_processed"])

    before = processed()
    step()
    # Asking counts as one.
    return processed() - before - 1


def test_one_scheduler_reports_that_it_leads_and_the_other_that_it_stands_by(
    clock: Clock, own_valkey: OwnValkey
) -> None:
    def leading() -> list[bool | None]:
        return [each.leads for each in heartbeats.processes(own_valkey.client)]

    clock.poll()
    assert leading() == [True]
    # Both are of this process, so what the other one reports takes the first one's place.
    other = Clock(own_valkey.client, TABLE)
    other.poll()
    assert leading() == [False]
    clock.remove_lock()
    other.poll()
    assert leading() == [True]


entries = st.builds(
    Entry,
    name=st.just("entry"),
    every=st.integers(1, 10**6),
    offset=st.integers(0, 10**6),
)


@given(entries, st.floats(0, 4e9))
def test_the_next_time_is_the_first_of_the_entrys_times_after_the_moment(
    entry: Entry, moment: float
) -> None:
    following = entry.next_after(moment)

    assert (following - entry.offset) % entry.every == 0
    assert moment < following <= moment + entry.every


def test_every_entry_has_a_name_that_rq_takes_and_its_own_period() -> None:
    for name, entry in TIMETABLE.items():
        assert name == entry.name
        assert re.fullmatch(r"[A-Za-z0-9_-]+", name)
        assert entry.every >= 1
        assert 0 <= entry.offset < entry.every
