"""The time budget of a verification within a request."""

import time

# Beyond that a verification would delay other requests of the process.
_EXPECTED_AT_MOST = 3.0
# Throughput of one of two cores that are busy with other work.
_ENTRIES_A_SECOND = 60_000
_LEAVES_A_SECOND = 200_000


class TakesLonger(Exception):
    """The time that was given is over, and nothing is decided."""


class Deadline:
    """A moment; `check` is cheap enough for every batch."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` of wall time, waits for a connection included; None: there is no hurry."""
        self._seconds = seconds
        self._end = float("inf") if seconds is None else time.monotonic() + seconds

    def expect(self, entries: int, leaves: int) -> None:
        """Raise `TakesLonger` if so many will clearly not do."""
        self.check()
        if self._seconds is None:
            return
        expected = entries / _ENTRIES_A_SECOND + leaves / _LEAVES_A_SECOND
        if expected > min(self._seconds, _EXPECTED_AT_MOST):
            raise TakesLonger

    def check(self) -> None:
        """Raise `TakesLonger` behind the moment."""
        if time.monotonic() > self._end:
            raise TakesLonger
