"""How long a verification may take while somebody waits for it."""

import time


class TakesLonger(Exception):
    """The time that was given is over, and nothing is decided."""


class Deadline:
    """A moment; `check` is cheap enough for every batch."""

    def __init__(self, seconds: float | None) -> None:
        """None: there is no hurry."""
        self.seconds = float("inf") if seconds is None else seconds
        self._end = time.monotonic() + self.seconds

    def check(self) -> None:
        """Raise `TakesLonger` behind the moment."""
        if time.monotonic() > self._end:
            raise TakesLonger
