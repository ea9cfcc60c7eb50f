"""How much one caller may ask: fixed windows, counted in this process's memory.

Counting in Redis would make its loss an outage; so each web process counts for itself, and a
deployment's limit is this one times its processes. A key is counted by its id, a caller without one
by its address (IPv6 by /64, since one host owns that many).
"""

import ipaddress
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from flask import Response, current_app, g, request

from app.settings import SettingError

EXTENSION = "record-service-limits"

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_RATE = re.compile(r"([1-9][0-9]{0,9})\s*(?:per|/)\s*(second|minute|hour|day)", re.ASCII)
# Callers remembered in one window; beyond it the window starts anew rather than eat the memory.
_MOST_CALLERS = 100_000


@dataclass(frozen=True)
class Rate:
    """So many requests in so many seconds."""

    limit: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Read `300 per minute` or `300/minute` (second, minute, hour, day).

        Raises `SettingError`.
        """
        match = _RATE.fullmatch(text.strip())
        if match is None:
            raise SettingError("RATE_LIMIT is wrong: write it as 300 per minute")
        return cls(int(match[1]), _UNITS[match[2]])


# Nobody guesses 238 random bits; this spares the database the lookups of a client gone wrong.
REFUSALS = Rate(1000, 60)


@dataclass(frozen=True)
class Spent:
    """What one caller has used of its rate, for the `RateLimit` headers."""

    rate: Rate
    count: int
    resets_in: int

    @property
    def exceeded(self) -> bool:
        """Whether this request was one too many."""
        return self.count > self.rate.limit

    def headers(self) -> dict[str, str]:
        """Return the headers that tell the caller (draft-ietf-httpapi-ratelimit-headers-06)."""
        return {
            "RateLimit-Limit": str(self.rate.limit),
            "RateLimit-Remaining": str(max(self.rate.limit - self.count, 0)),
            "RateLimit-Reset": str(self.resets_in),
        }


class RateLimited(Exception):
    """The caller asked too often; `spent` says when to come back."""

    def __init__(self, spent: Spent) -> None:
        super().__init__("rate limited")
        self.spent = spent


class Counter:
    """Counts requests by caller in windows of one rate; safe for the threads of a process."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._window = -1
        self._counts: dict[object, int] = {}

    def hit(self, caller: object) -> Spent:
        """Count one request of `caller`."""
        now = self._clock()
        window = int(now // self._rate.seconds)
        with self._lock:
            if window != self._window or len(self._counts) >= _MOST_CALLERS:
                self._window, self._counts = window, {}
            count = self._counts[caller] = self._counts.get(caller, 0) + 1
        return Spent(self._rate, count, int((window + 1) * self._rate.seconds - now) + 1)


@dataclass(frozen=True)
class Limits:
    """The counters of one application."""

    requests: Counter
    refusals: Counter = field(default_factory=lambda: Counter(REFUSALS))


def count_key(key_id: UUID) -> None:
    """Count a request of an authenticated key; raises `RateLimited`."""
    _spend(_limits().requests, key_id)


def count_address() -> None:
    """Count a request that needs no key; raises `RateLimited`."""
    _spend(_limits().requests, address())


def count_refusal() -> None:
    """Count a key that was not good; raises `RateLimited` once an address has had too many.

    A good key from the same address is never held back by it.
    """
    _spend(_limits().refusals, address())


def address() -> str:
    """Return whom a request without a key counts for: an IPv4 address, or an IPv6 network of /64.

    One host owns that many; an IPv4 address that a socket for both shows in IPv6 counts as itself.
    """
    text = (request.remote_addr or "").partition("%")[0]
    if ":" not in text:
        return text
    shown = ipaddress.IPv6Address(text)
    if shown.ipv4_mapped is not None:
        return str(shown.ipv4_mapped)
    return str(ipaddress.IPv6Network((shown, 64), strict=False))


def add_headers(response: Response) -> Response:
    """Tell the caller what is left of its rate."""
    spent: Spent | None = g.get("spent")
    if spent is not None:
        response.headers.update(spent.headers())
    return response


def _spend(counter: Counter, caller: object) -> None:
    g.spent = spent = counter.hit(caller)
    if spent.exceeded:
        raise RateLimited(spent)


def _limits() -> Limits:
    return cast(Limits, current_app.extensions[EXTENSION])
