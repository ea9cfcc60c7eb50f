"""Rates, and counting callers against one: fixed windows in memory of a fixed size.

The counts are a count-min sketch under a key of this process: a caller is never counted too low,
and a flood of other callers neither resets a count nor takes memory.
"""

import re
import secrets
import struct
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_RATE = re.compile(r"([1-9][0-9]{0,9})\s*(?:per|/)\s*(second|minute|hour|day)", re.ASCII)
# Of N requests in a window, a caller is counted more than e/WIDTH x N too high with a chance of
# e^-DEPTH (Cormode and Muthukrishnan 2005); a megabyte in all.
_WIDTH = 2**15
_DEPTH = 4
_PLACES = struct.Struct(f"{_DEPTH}I")
_PLACES_KEPT = 4096


@dataclass(frozen=True)
class Rate:
    """So many requests in so many seconds."""

    limit: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Read `300 per minute` or `300/minute` (second, minute, hour, day).

        Raises `ValueError`.
        """
        match = _RATE.fullmatch(text.strip())
        if match is None:
            raise ValueError("write it as 300 per minute")
        return cls(int(match[1]), _UNITS[match[2]])


@dataclass(frozen=True, slots=True)
class Spent:
    """One caller's use of a rate; `scope` names the caller's kind, for people."""

    rate: Rate
    scope: str
    count: int
    resets_in: int

    @property
    def exceeded(self) -> bool:
        """Whether this request was one too many."""
        return self.count > self.rate.limit

    @property
    def remaining(self) -> int:
        """How many more requests the window allows."""
        return max(self.rate.limit - self.count, 0)

    def headers(self) -> dict[str, str]:
        """Return the headers that tell the caller (draft-ietf-httpapi-ratelimit-headers-06)."""
        return {
            "RateLimit-Limit": str(self.rate.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.resets_in),
        }


class Counter:
    """Counts requests by caller in windows of one rate; safe for the threads of a process."""

    def __init__(self, rate: Rate, scope: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._scope = scope
        self._clock = clock
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(16)
        self._window = -1
        # Its rows, one behind the other.
        self._cells = array("Q")
        self._places = lru_cache(_PLACES_KEPT)(self._places_of)

    def hit(self, caller: bytes, times: int = 1) -> Spent:
        """Count so many requests of `caller`."""
        now = self._clock()
        window = int(now // self._rate.seconds)
        places = self._places(caller)
        with self._lock:
            if window != self._window:
                self._window = window
                self._cells = array("Q", bytes(8 * _WIDTH * _DEPTH))
            cells = self._cells
            count = times + min([cells[place] for place in places])
            for place in places:
                if cells[place] < count:
                    cells[place] = count
        resets_in = int((window + 1) * self._rate.seconds - now) + 1
        return Spent(self._rate, self._scope, count, resets_in)

    def _places_of(self, caller: bytes) -> list[int]:
        digest = blake2b(caller, digest_size=_PLACES.size, key=self._key).digest()
        return [row * _WIDTH + place % _WIDTH for row, place in enumerate(_PLACES.unpack(digest))]
