"""Redis behind Sentinels: the bell, the clock and a worker follow to the new primary."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from app.queue import Bell, connect
from dev import processes
from dev.stores.valkey import server_binary
from jobs.process.broker import BellBroker
from scheduler.clock import Clock
from scheduler.timetable import TIMETABLE
from tests.jobs.broker.working import TENANT, Seen, working
from tests.support.faults import LONG_ENOUGH, until
from tests.support.servers.ports import own_port

pytestmark = pytest.mark.toolbox
_PASSWORD = "of-redis"
_SENTINEL = """
port {port}
sentinel monitor main 127.0.0.1 {primary} 1
sentinel auth-pass main {password}
sentinel down-after-milliseconds main 300
sentinel failover-timeout main 5000
"""


class Watched:
    """A primary, a replica and a Sentinel that promotes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ports = primary, replica = own_port(), own_port()
        self._sentinel = own_port()
        self.running = [
            self._server(primary),
            self._server(replica, "--replicaof", "127.0.0.1", str(primary)),
        ]
        until(lambda: self._told(replica, "master_link_status") == "up")
        text = _SENTINEL.format(port=self._sentinel, primary=primary, password=_PASSWORD)
        (folder / "sentinel.conf").write_text(text)
        self.running.append(self._start("sentinel.conf", "--sentinel"))
        self.url = f"redis+sentinel://:{_PASSWORD}@127.0.0.1:1,127.0.0.1:{self._sentinel}/main/0"
        until(lambda: len(self._ask_sentinel("REPLICAS")) == 1)

    def kill_primary(self) -> None:
        processes.stop(self.running.pop(0), signal.SIGKILL)

    def fail_over(self) -> None:
        """Have the Sentinel make the replica the primary, and the primary a replica."""
        until(lambda: self._ask_sentinel("FAILOVER") == b"OK")

    def is_promoted(self) -> bool:
        return self._told(self.ports[1], "role") == "master"

    def close(self) -> None:
        for each in self.running:
            processes.stop(each)

    def _server(self, port: int, *more: str) -> "subprocess.Popen[bytes]":
        given = ("--port", str(port), "--requirepass", _PASSWORD, "--masterauth", _PASSWORD)
        return self._start(*given, "--save", "", "--repl-diskless-sync-delay", "0", *more)

    def _start(self, *argv: str) -> "subprocess.Popen[bytes]":
        argv = (str(server_binary()), *argv)
        with (self._folder / "log").open("ab") as log:
            return processes.start(argv, env={"LC_ALL": "C"}, cwd=self._folder, output=log)

    def _ask_sentinel(self, question: str) -> Any:
        try:
            with redis.Redis(port=self._sentinel) as asked:
                return asked.execute_command("SENTINEL", question, "main")
        except (redis.ConnectionError, redis.ResponseError):
            # It is not up, or knows no replica that is fit.
            return ()

    def _told(self, port: int, what: str) -> object:
        try:
            with redis.Redis(port=port, password=_PASSWORD) as client:
                return client.info("replication").get(what)
        except redis.ConnectionError:
            return None


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    running = Watched(tmp_path)
    yield running
    running.close()


def test_a_lost_primary_costs_the_bell_the_clock_and_a_worker_nothing_but_seconds(
    watched: Watched,
) -> None:
    bell = Bell(watched.url)
    clock = Clock(connect(watched.url, LONG_ENOUGH), TIMETABLE)
    seen = Seen()
    with working(watched, run_job=seen.note) as worker:
        assert isinstance(worker.broker, BellBroker)
        listener = worker.broker.listener
        until(lambda: listener.heard)
        bell.ring("run_job", [TENANT, "before"])
        until(lambda: (TENANT, "before") in seen.calls)
        clock.poll()
        watched.kill_primary()
        bell.ring("run_job", [TENANT, "into the dark"])
        assert bell.trouble is not None
        until(watched.is_promoted)
        until(lambda: bell.presence() is not None)
        until(lambda: listener.heard)
        bell.ring("run_job", [TENANT, "after"])
        until(lambda: (TENANT, "after") in seen.calls)
        clock.poll()
        (new,) = watched.ports[1:]
        with redis.Redis(port=new, password=_PASSWORD) as client:
            assert client.zcard(clock.scheduled_jobs_key) == len(TIMETABLE)
    bell.close()


def test_a_primary_that_is_made_a_replica_beside_its_clients_is_left(watched: Watched) -> None:
    client = connect(watched.url, LONG_ENOUGH)
    assert client.set("a", "before")
    watched.fail_over()

    def written() -> bool:
        try:
            return bool(client.set("a", "after"))
        except redis.ConnectionError:
            return False

    with redis.Redis(port=watched.ports[1], password=_PASSWORD) as new:
        # What is written between promotion and demotion is lost, as Redis's documents say.
        until(lambda: written() and new.get("a") == b"after")
    client.close()
