"""Batches wake-ups: a thread rings lanes, so that no request waits for Redis.

Lanes that are requested during a ring go out with the next one, each once. The sweep rings those
that are lost when the process dies.
"""

import threading
from collections.abc import Iterable
from uuid import UUID

from app.queue import Bell

LaneKey = tuple[UUID, UUID]


class WakeupBatcher:
    """Hands lanes to the bell; one a process, shared by its threads."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._changed = threading.Condition()
        self._waiting: dict[LaneKey, None] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def ring(self, lanes: Iterable[LaneKey]) -> None:
        """Have each lane, named by (tenant id, webhook id), rung soon; returns at once."""
        with self._changed:
            self._waiting.update(dict.fromkeys(lanes))
            # Started by the first ring: a process that forks afterwards takes no thread along.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="wakeups", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, timeout: float = 2.0) -> None:
        """Ring what is left, for at most `timeout` seconds, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while lanes := self._next():
            self._bell.ring_lanes(lanes)

    def _next(self) -> list[LaneKey]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            lanes, self._waiting = list(self._waiting), {}
            return lanes
