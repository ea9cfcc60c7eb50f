"""What tests do to a Valkey and to clocks, how they act at once, and wait with a guard."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import IPv4Interface
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import redis

from dev.stores.valkey import EmbeddedValkey
from tests.support.servers.shared import Shared

_Found = TypeVar("_Found")


class Hands:
    """A clock that stands still until a test sets it forward."""

    def __init__(self) -> None:
        self._now = 1_000.0

    def __call__(self) -> float:
        return self._now

    def forward(self, seconds: float) -> None:
        """Let so many seconds have passed."""
        self._now += seconds


class OwnValkey:
    """A Valkey that one test may freeze, kill and empty."""

    def __init__(self, folder: Path, also_on: IPv4Interface | None = None) -> None:
        self._server = EmbeddedValkey(folder, also_on=also_on)
        self._server.start()
        self.url = self._server.url
        # Its stubs say of each answer that it may be anything.
        self.client: Any = redis.Redis.from_url(self.url)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the server's process for a while: connections stand, nothing answers."""
        pid = int(self.client.info("server")["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def away(self, *, emptied: bool = False) -> Iterator[None]:
        """Stop the server for a while; `emptied` loses all it held."""
        self._server.stop()
        yield
        if emptied:
            shutil.rmtree(self._server.folder / "appendonlydir")
        self._server.start()

    @property
    def watched(self) -> Shared:
        """It as a server that tests share."""

        def start() -> None:
            self._server.stop()
            self._server.start()

        return Shared("Valkey", lambda: self._server.process, self._server.log, start)

    def forget(self) -> None:
        """Lose all that it holds and has counted, and every connection but this one.

        What a test forbade is allowed again.
        """
        self.client.execute_command("ACL SETUSER default allchannels allkeys allcommands")
        self.client.client_kill_filter(_type="normal", skipme=True)
        self.client.client_kill_filter(_type="pubsub", skipme=True)
        self.client.flushall()
        self.client.script_flush()
        self.client.config_resetstat()

    def close(self) -> None:
        """End the server."""
        self.client.close()
        self._server.stop()


# A guard, no measure: a slow machine that does much else takes long for what is soon done.
LONG_ENOUGH = 90.0
_SHORTEST_PAUSE = 0.005


def until(
    condition: Callable[[], object],
    seconds: float = LONG_ENOUGH,
    *,
    pause: float = 0.1,
    why: object = "",
) -> float:
    """Wait until `condition()` is true and return the seconds it took; fail after `seconds`.

    It is asked again at once, then ever more seldom (backoff), at least each `pause` seconds: what
    asks a service takes processor time from it. A failure says `why`, as it is then.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds} s {why}"
        time.sleep(min(pause, max(_SHORTEST_PAUSE, waited / 20)))
    return time.monotonic() - began


def at_once(count: int, act: Callable[[int], _Found]) -> list[_Found]:
    """Run `act(0)`, `act(1)`, … in `count` threads at one moment; return what each returned."""
    start = Barrier(count)

    def run(number: int) -> _Found:
        start.wait(LONG_ENOUGH)
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
