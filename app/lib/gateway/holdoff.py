"""Requests that were refused a moment ago: one that repeats such a request at once is delayed.

Without this a client that heeds no Retry-After keeps the process busy with refusing it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock


class Holdoff:
    """Remembers refusals for so many seconds, the newest `most`; safe for threads.

    A refusal of a repetition is none to remember, so that each `seconds` one request is looked at
    in full.
    """

    def __init__(
        self, seconds: float, most: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._most = most
        self._lock = Lock()
        self._refused: OrderedDict[object, tuple[float, object]] = OrderedDict()

    def remember(self, what: object, why: object) -> None:
        """Remember that a request was refused."""
        with self._lock:
            self._refused[what] = (self._clock() + self.seconds, why)
            self._refused.move_to_end(what)
            if len(self._refused) > self._most:
                self._refused.popitem(last=False)

    def why(self, what: object) -> object | None:
        """Return why a request was refused a moment ago; None where it was not."""
        now = self._clock()
        with self._lock:
            while self._refused:
                oldest, (until, _) = next(iter(self._refused.items()))
                if until > now:
                    break
                del self._refused[oldest]
            found = self._refused.get(what)
        return None if found is None else found[1]
