"""A circuit breaker: after a failure the remote side is not called for some time.

While it is open, one caller per period is let through as a probe. So a hung server costs that
caller its timeout, and all others nothing.
"""

import time
from collections.abc import Callable
from threading import Lock


class Breaker:
    """Whether a call is worth trying; shared by the threads of a process."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds`, by `clock`, pass between two tries while the other side fails."""
        self._seconds = seconds
        self._clock = clock
        self._lock = Lock()
        self._failing = False
        self._try_again_at = 0.0

    def admits(self) -> bool:
        """Say whether the caller may try now; who is admitted reports how it went."""
        with self._lock:
            if not self._failing:
                return True
            now = self._clock()
            if now < self._try_again_at:
                return False
            self._try_again_at = now + self._seconds
            return True

    def failed(self) -> bool:
        """Note a failure; True when it is the first since the last success."""
        with self._lock:
            opens = not self._failing
            self._failing = True
            self._try_again_at = self._clock() + self._seconds
            return opens

    def succeeded(self) -> bool:
        """Note a success; True when it is the first since a failure."""
        if not self._failing:
            return False
        with self._lock:
            closes = self._failing
            self._failing = False
            return closes
