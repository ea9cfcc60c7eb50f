"""Notices, while it is still going on, that something takes long.

One thread serves a process. It looks only at what is out at this moment (a few dozen requests at
most), and a watch that ends in time costs its owner two turns of a lock and wakes no thread.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Watch:
    due: float
    alarm: Callable[[], None]


class Watchdog:
    """Calls an alarm, once, for each watch that is not over after its time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._out: set[_Watch] = set()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, seconds: float, alarm: Callable[[], None]) -> Iterator[None]:
        """Call `alarm` from the watchdog's thread if the block takes longer than `seconds`.

        The alarm should return at once; it may still be running when the block ends.
        """
        watch = _Watch(time.monotonic() + seconds, alarm)
        with self._changed:
            self._out.add(watch)
            if watch.due < self._wakes_at:
                self._wake()
        try:
            yield
        finally:
            with self._changed:
                self._out.discard(watch)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        while True:
            for watch in self._wait_for_late():
                try:
                    watch.alarm()
                except Exception:  # noqa: BLE001 - one bad alarm must not silence the others
                    _log.exception("An alarm failed.")

    def _wait_for_late(self) -> list[_Watch]:
        """Sleep until the next watch is due; return those that are late, and forget them."""
        with self._changed:
            self._wakes_at = min((watch.due for watch in self._out), default=math.inf)
            wait = self._wakes_at - time.monotonic()
            self._changed.wait(None if wait == math.inf else max(wait, 0))
            now = time.monotonic()
            late = [watch for watch in self._out if watch.due <= now]
            self._out.difference_update(late)
            return late
