"""Requests to stop: Ctrl-C, SIGTERM, or the closing of the terminal."""

import signal
import time
from types import FrameType

_FORCE_AFTER_SECONDS = 1.0


class StopRequest:
    """True once a stop was requested.

    Once is enough. Again, a second or more later, means: at once (`forced`). Sooner, it is the same
    request heard twice: `make` passes on a signal that its whole group has received already.
    """

    def __init__(self) -> None:
        self.forced = False
        self._asked_at: float | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._hear)

    def __bool__(self) -> bool:
        return self._asked_at is not None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at >= _FORCE_AFTER_SECONDS:
            self.forced = True
