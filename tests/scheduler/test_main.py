"""`python -m scheduler` as a process: signals, faults, two at once, and `now`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from dramatiq import Message

from app.lib.crypto.sealing import MasterKeys
from app.queue import ACTORS, Bell
from scheduler.__main__ import main
from scheduler.timetable import TIMETABLE
from tests.support.faults import LONG_ENOUGH, OwnValkey, until

Start = Callable[..., "subprocess.Popen[bytes]"]

SCHEDULED = "rq:scheduler:scheduled_jobs"
LOCK = "rq:scheduler_lock"
ENTRIES = ", ".join(sorted(TIMETABLE))
# A clock that finds nothing rings every entry once.
AT_FIRST = sum(ACTORS[entry.name] == "tick" for entry in TIMETABLE.values())
# It takes a second at most, two with a frozen Redis. Who is deaf is killed by most runners after
# ten; rq-scheduler by itself, waiting for Redis, would never end.
MAY_TAKE_TO_STOP = 10.0


def environment(redis_url: str, **more: str) -> dict[str, str]:
    """Return an environment with a Redis and, as the clock needs none, no database."""
    return {
        **os.environ,
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "MASTER_KEYS": MasterKeys.generate(),
        "BASE_URL": "https://records.test",
        "REDIS_URL": redis_url,
        **more,
    }


@pytest.fixture
def start(own_valkey: OwnValkey, tmp_path: Path) -> Iterator[Start]:
    """Return a starter of clocks."""
    started = []

    def start_clock(**more: str) -> "subprocess.Popen[bytes]":
        with (tmp_path / "clock.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "scheduler"],
                env=environment(own_valkey.url, **more),
                stdout=log,
                stderr=log,
            )
        started.append(process)
        return process

    yield start_clock
    for process in started:
        process.kill()
        process.wait()


def now(redis_url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `python -m scheduler` with arguments."""
    return subprocess.run(
        [sys.executable, "-m", "scheduler", *arguments],
        env=environment(redis_url),
        capture_output=True,
        text=True,
        timeout=LONG_ENOUGH,
        check=False,
    )


def ticks(valkey: OwnValkey) -> int:
    """Count the messages that wait on the queue of ticks."""
    return int(valkey.client.llen("dramatiq:tick"))


def tick_anew(valkey: OwnValkey) -> None:
    """Wait for one more tick than there is."""
    valkey.client.delete("dramatiq:tick", "dramatiq:tick.msgs")
    until(lambda: ticks(valkey))


def swept_at(valkey: OwnValkey) -> list[int]:
    """Return the second of each `sweep` that was rung, in order."""
    ids = valkey.client.lrange("dramatiq:tick", 0, -1)
    messages = [Message.decode(valkey.client.hget("dramatiq:tick.msgs", each)) for each in ids]
    return [each.message_timestamp // 1000 for each in messages if each.actor_name == "sweep"]


def said(log: Path, event: str) -> int:
    """Count how often the clock has said this."""
    return log.read_text().count(f'"{event}"')


def test_a_clock_ticks_each_second_and_shows_that_it_lives(
    own_valkey: OwnValkey, start: Start
) -> None:
    start()
    until(lambda: ticks(own_valkey) >= AT_FIRST)

    # However late it is woken now and then: some tick comes a second after the one before.
    until(lambda: any(b - a == 1 for a, b in pairwise(swept_at(own_valkey))))
    assert Bell(own_valkey.url).presence() == {"worker": False, "scheduler": True}


def test_two_clocks_tick_as_one(own_valkey: OwnValkey, start: Start) -> None:
    start()
    start()
    until(lambda: len(swept_at(own_valkey)) >= 6)

    swept = swept_at(own_valkey)
    # A tick that was due at the end of a second may be written in the next; two clocks that both
    # rang would have come to half as many seconds.
    assert len(set(swept)) >= len(swept) - 1


def test_when_the_holder_is_killed_the_other_goes_on_once_its_lock_ends(
    own_valkey: OwnValkey, start: Start
) -> None:
    holder = start()
    until(lambda: ticks(own_valkey))
    start()
    until(lambda: len(own_valkey.client.client_list()) >= 3)

    holder.kill()
    holder.wait()
    # Eleven seconds at most; nobody else can keep it, so it may as well end now.
    assert 0 <= own_valkey.client.ttl(LOCK) <= 11
    own_valkey.client.pexpire(LOCK, 1)

    tick_anew(own_valkey)


def test_when_the_holder_stops_the_other_goes_on_at_once(
    own_valkey: OwnValkey, start: Start
) -> None:
    holder = start()
    until(lambda: ticks(own_valkey))
    name = own_valkey.client.get(LOCK)
    start()
    until(lambda: len(own_valkey.client.client_list()) >= 3)

    holder.send_signal(signal.SIGINT)
    assert holder.wait(MAY_TAKE_TO_STOP) == 0

    # Nobody has to wait for the eleven seconds that it would have lasted.
    assert own_valkey.client.get(LOCK) != name
    tick_anew(own_valkey)


def test_a_clock_starts_before_redis_and_lives_through_one_that_goes_and_freezes(
    own_valkey: OwnValkey, start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "clock.log"
    with own_valkey.away(emptied=True):
        clock = start()
        until(lambda: said(log, "redis_unavailable"))
    until(lambda: said(log, "redis_recovered"))
    with own_valkey.away(emptied=True):
        until(lambda: said(log, "redis_unavailable") > 1)
    tick_anew(own_valkey)
    until(lambda: said(log, "redis_recovered") == said(log, "redis_unavailable"))
    before = said(log, "redis_unavailable")
    with own_valkey.frozen():
        until(lambda: said(log, "redis_unavailable") > before)
    tick_anew(own_valkey)

    assert clock.poll() is None


def test_a_clock_stops_when_told_though_redis_is_frozen(
    own_valkey: OwnValkey, start: Start
) -> None:
    clock = start()
    until(lambda: ticks(own_valkey))
    with own_valkey.frozen():
        clock.terminate()
        assert clock.wait(MAY_TAKE_TO_STOP) == 0


def test_the_hosts_time_zone_changes_nothing(own_valkey: OwnValkey, start: Start) -> None:
    start(TZ="America/St_Johns")
    until(lambda: own_valkey.client.zscore(SCHEDULED, "prune_history"))

    def settled() -> bool:
        times = dict(own_valkey.client.zrange(SCHEDULED, 0, -1, withscores=True))
        expected = TIMETABLE["prune_history"].next_after(time.time())
        return bool(times[b"prune_history"] == expected)

    until(settled)


def test_now_rings_an_entry_at_once_and_says_so(own_valkey: OwnValkey) -> None:
    done = now(own_valkey.url, "now", "prune_history")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "rang prune_history: actor prune_history, queue tick; "
        "no worker is up, so it waits for one\n"
    )
    assert ticks(own_valkey) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["now", "swep"], f"no entry 'swep'; there are: {ENTRIES}\n"),
        (["now", ""], f"no entry ''; there are: {ENTRIES}\n"),
        (["now"], "usage: python -m scheduler [now NAME]\n"),
        (["later", "sweep"], "usage: python -m scheduler [now NAME]\n"),
        (["now", "sweep", "sweep"], "usage: python -m scheduler [now NAME]\n"),
    ],
)
def test_a_wrong_call_is_answered_in_one_line(
    own_valkey: OwnValkey,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment(own_valkey.url).items():
        monkeypatch.setenv(name, value)

    assert main(arguments) == 2

    assert capsys.readouterr() == ("", words)
    assert ticks(own_valkey) == 0


def test_now_without_a_redis_is_answered_in_one_line() -> None:
    done = now("redis://127.0.0.1:1/0", "now", "sweep")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "Redis does not answer: the connection was refused.\n"
