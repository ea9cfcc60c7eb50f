"""The state of the parts that are read from the database, as one process last computed it.

A tick in each web process computes it every five seconds, from the first time that it is asked for.
A state older than three periods is reported as unknown, with its age.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from app import heartbeats
from app.core.health import database_state, gauges, probes
from app.core.health.parts import Part, State, named
from app.database import Database
from app.lib.repeater import Repeater
from app.queue import Bell
from app.settings import Process, Settings

EVERY_SECONDS = 5.0
# So long a request waits for the first computation; a probe is answered 503 before.
_WAIT_SECONDS = 3.0
_LAST_SECONDS = 2.0


class Readiness:
    """The state that one process last computed, and the thread that computes it."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        every: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up; `clock` returns seconds. `parts` begins it."""
        self._database = database
        self._settings = settings
        self._every = every
        self._clock = clock
        # The parts, and when they were computed by the process's clock.
        self._state: tuple[Sequence[Part], float] = ((), float("-inf"))
        self._tried = threading.Event()
        self._thread = Repeater("readiness", self._tick, every, failed="readiness_not_computed")

    def parts(self) -> Sequence[Part]:
        """Return the parts; they are unknown if the last state is over three periods old."""
        self._thread.begin()
        self._tried.wait(_WAIT_SECONDS)
        parts, at = self._state
        age = self._clock() - at
        if age <= 3 * self._every:
            return parts
        last = f"computed {age:.0f} s ago" if parts else "never computed"
        return self.unknown(f"{last}, look for readiness_not_computed in this web process")

    def unknown(self, why: str | None = None) -> Sequence[Part]:
        """Return the parts where none can be read from the database, and why."""
        unknown = Part(State.NOT_CHECKED, "unknown", detail=why)
        stores = () if self._settings.blob_url is None else ("objects",)
        parts = dict.fromkeys(("database_writes", *probes.OF_DATABASE, *stores), unknown)
        # Of these it is what tenants ask about.
        parts["audit"] = replace(unknown, banner=probes.UNKNOWN_AUDIT.format(why))
        named_parts = [replace(part, name=name) for name, part in parts.items()]
        return [*named_parts, probes.head(self._settings)]

    def compute(self) -> None:
        """Compute the state now. Raises `Unavailable`."""
        parts = [probes.head(self._settings)]
        with self._database.across_tenants() as session:
            gauges.limit_time(session)
            for name, probe in probes.OF_DATABASE.items():
                parts += named(name, probe(session, self._settings))
            objects = [*probes.unerased(session, self._settings)]
        objects += probes.objects_reached(self._settings)
        parts += named("objects", objects) if objects else ()
        writes = database_state.writes(self._database, self._settings.master_keys)
        parts += named("database_writes", [writes])
        self._state = (parts, self._clock())

    def _tick(self) -> None:
        try:
            self.compute()
        finally:
            self._tried.set()

    def close(self) -> None:
        """Stop; waits up to two seconds for a computation in progress."""
        self._thread.close(_LAST_SECONDS)


# At the process's end, for a report in progress.
LAST_SECONDS = 1.0


def process_report(database: Database, bell: Bell, role: Process) -> Repeater:
    """Return the report of a process, which has one; begin it again after a fork.

    Each five seconds; it does nothing while Redis is unavailable.
    """

    def report() -> None:
        size, in_use = database.pool.size(), database.pool.most_in_use()
        bell.report(heartbeats.Process(role, pool_size=size, pool_in_use=in_use))

    name, failed = "process-report", "process_not_reported"
    return Repeater(name, report, heartbeats.EVERY_SECONDS, failed=failed)
