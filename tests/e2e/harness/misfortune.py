"""What befalls a running service: processes killed, stores emptied, frozen, stopped and restarted.

A `Misfortune` begins and ends once (`lasting`), does something now and then (`act` each `every`
seconds), or both. `suffer` brings several at once from the thread that calls it: the kernel ends
servers with the thread that started them.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from dev.data_dir import LINE, OWNED_BY
from dev.processes import carrying
from dev.stores.postgres import EmbeddedPostgres
from tests.e2e.harness.elsewhere import Elsewhere, OtherWorker
from tests.e2e.harness.stack import RunningStack, running
from tests.support.faults import OwnValkey, until
from tests.support.programs.processes import family
from tests.support.servers.shared import Shared, shared

_TURN_SECONDS = 0.02

_TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_BACKEND = """
SELECT pid FROM pg_stat_activity
 WHERE application_name = 'record-service web' ORDER BY query_start DESC LIMIT 1
"""


@dataclass(frozen=True)
class Misfortune:
    """One thing that goes wrong."""

    name: str
    act: Callable[[], object] = lambda: None
    every: float = float("inf")
    # Seconds that it takes to tell anything.
    least: float = 0.0
    lasting: Callable[[], AbstractContextManager[object]] = nullcontext


def suffer(seconds: float, *misfortunes: Misfortune) -> None:
    """Let all of these happen at once, for `seconds` or as long as one of them needs.

    Each acts at once and then now and then.
    """
    with ExitStack() as begun:
        for misfortune in misfortunes:
            begun.enter_context(misfortune.lasting())
        ends = time.monotonic() + max(seconds, *(each.least for each in misfortunes))
        next_at = dict.fromkeys(range(len(misfortunes)), time.monotonic())
        while (now := time.monotonic()) < ends:
            for number, misfortune in enumerate(misfortunes):
                if now >= next_at[number]:
                    next_at[number] = now + misfortune.every
                    misfortune.act()
            time.sleep(_TURN_SECONDS)


class House:
    """A whole service on stores that a test may mistreat, and every way to mistreat it.

    `folder` has the logs of all its parts, `other` is a second host for a worker, if there is one,
    and `address` is where both hosts reach what listens on this one.
    """

    def __init__(
        self,
        stack: RunningStack,
        folder: Path,
        postgres: EmbeddedPostgres,
        valkey: OwnValkey,
        other: OtherWorker | None,
    ) -> None:
        self.stack = stack
        self.folder = folder
        self.other = other
        self.address = str(other.host.here.ip) if other else "127.0.0.1"
        self.admin_url = postgres.admin_url
        self.valkey = valkey
        self._postgres = postgres
        self._up = int((folder / "data" / "lock").read_text())
        self._mark = {OWNED_BY: str(folder / "data")}

    def killed(self, line: str, every: float) -> Misfortune:
        """Kill a process of a line of the Procfile, whichever, without a word."""
        return Misfortune(f"{line} killed", lambda: self._kill_one(line), every)

    def worker_frozen(self) -> Misfortune:
        """Stop one process of the workers where it stands, as a host does that is swapped out."""
        return Misfortune("a worker frozen", lasting=self._worker_frozen)

    def redis_emptied(self, every: float) -> Misfortune:
        """Take from Redis all it holds."""
        return Misfortune("Redis emptied", self.valkey.client.flushall, every)

    def redis_frozen(self) -> Misfortune:
        """Stop Redis's process: connections stand, nothing answers."""
        return Misfortune("Redis frozen", lasting=self.valkey.frozen)

    def redis_away(self) -> Misfortune:
        """Stop Redis, and start it again with nothing in it."""
        return Misfortune("Redis away", lasting=lambda: self.valkey.away(emptied=True))

    def connections_terminated(self, every: float) -> Misfortune:
        """Terminate every connection to the database."""
        return Misfortune("connections terminated", self._terminate, every)

    def postgres_restarted(self, every: float) -> Misfortune:
        """Stop PostgreSQL, as an upgrade does, and start it again."""
        return Misfortune("PostgreSQL restarted", self._restart_postgres, every)

    def postgres_killed(self, every: float) -> Misfortune:
        """Kill a backend of PostgreSQL, which ends all others and recovers from its log."""
        return Misfortune("PostgreSQL killed", self._kill_postgres, every)

    def processes(self, line: str) -> list[int]:
        """Return the processes of a line of the Procfile, its leader first."""
        of_the_line = carrying(**self._mark, **{LINE: line})
        return [pid for pid in family(self._up) if pid in of_the_line]

    def kill_all(self, line: str) -> None:
        """Kill every process of a line at once."""
        for pid in self.processes(line):
            _signal(pid, signal.SIGKILL)

    def _kill_one(self, line: str) -> None:
        if pids := self.processes(line):
            _signal(random.choice(pids), signal.SIGKILL)

    @contextmanager
    def _worker_frozen(self) -> Iterator[None]:
        # After its leader, and Dramatiq's own, come the processes that work; a test before this one
        # may have killed them a moment ago.
        until(lambda: len(self.processes("worker")) > 2, 30)
        frozen = self.processes("worker")[-1]
        _signal(frozen, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(frozen, signal.SIGCONT)

    def _terminate(self) -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(self.admin_url) as connection:
            connection.execute(_TERMINATE)

    def _kill_postgres(self) -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(self.admin_url) as connection:
            for (pid,) in connection.execute(_BACKEND).fetchall():
                os.kill(pid, signal.SIGKILL)

    def _restart_postgres(self) -> None:
        self._postgres.stop()
        self._postgres.start()


@contextmanager
def house(
    folder: Path, settings: Mapping[str, str], host: Elsewhere | None = None
) -> Iterator[House]:
    """Run a whole service on its own stores for the length of the `with`.

    With another `host` a second worker runs there.
    """
    also_on = None if host is None else host.here
    with ExitStack() as everything:
        postgres = everything.enter_context(EmbeddedPostgres(folder / "postgres", also_on=also_on))
        valkey = OwnValkey(folder / "valkey", also_on)
        everything.callback(valkey.close)
        for server in (
            Shared("PostgreSQL", lambda: postgres.process, postgres.log, postgres.start),
            valkey.watched,
        ):
            everything.enter_context(shared(server))
        networks = ["127.0.0.0/8", *([str(host.here.network)] if host else [])]
        settings = {
            "DATABASE_URL": postgres.url,
            "DATABASE_ADMIN_URL": postgres.admin_url,
            "REDIS_URL": valkey.url,
            "WEBHOOK_ALLOWED_NETWORKS": ",".join(networks),
            **settings,
        }
        stack = everything.enter_context(running(folder, **settings))
        other = None
        if host is not None:
            settings["BASE_URL"] = stack.base_url
            other = OtherWorker(host, folder, settings)
            everything.callback(other.stop)
        yield House(stack, folder, postgres, valkey, other)


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal a process, unless it has just ended by itself: one's death may end its others."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
