"""A connection pool that closes idle connections and waits while the server has none left.

SQLAlchemy's own keeps every connection that it ever opened, and fails at once when the server
refuses one.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, Pool, PoolProxiedConnection

_log = structlog.get_logger(__name__)
# Where SQLAlchemy logs each use of a connection, by the pool's module.
logging.getLogger(__name__).setLevel(logging.WARNING)

_FIRST_BACKOFF_SECONDS = 0.05
_LONGEST_BACKOFF_SECONDS = 1.0
_NONE_LEFT = psycopg.errors.TooManyConnections.sqlstate
# libpq gives no SQLSTATE for a connection that fails, only the text: PostgreSQL's four, for a role,
# a database, all and the reserved ones, and PgBouncer's.
_NONE_LEFT_TEXTS = (
    "too many connections for",
    "too many clients already",
    "remaining connection slots",
    "no more connections allowed",
)


def none_left(error: psycopg.Error) -> bool:
    """Say whether the server refused a connection because it has none left (SQLSTATE 53300)."""
    text = str(error)
    return error.sqlstate == _NONE_LEFT or any(each in text for each in _NONE_LEFT_TEXTS)


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How large a pool is, and the most connections that were in use at once lately."""

    size: int
    most_in_use: int


class PatientPool(Pool):
    """At most `pool_size` connections, last in, first out; shared by a process's threads.

    A caller waits at most `pool_wait` seconds for one, also while the server refuses it, and then
    gets SQLAlchemy's `TimeoutError` or the refusal. One that lay idle for `pool_idle` seconds is
    closed when another comes back. `on_wait` gets the seconds of each wait, also of one in vain.
    """

    on_wait: Callable[[float], None] | None = None

    def __init__(
        self,
        creator: Any,
        pool_size: int = 10,
        pool_wait: float = 10.0,
        pool_idle: float = 30.0,
        **options: Any,
    ) -> None:
        """Connect nothing yet; `creator` and `options` are those of SQLAlchemy's `Pool`."""
        super().__init__(creator, **options)
        self._options = options
        self._size = pool_size
        self._wait = pool_wait
        self._idle_seconds = pool_idle
        # Reentrant: the garbage collector may return a connection at any moment.
        self._changed = threading.Condition(threading.RLock())
        self._idle: deque[tuple[ConnectionPoolEntry, float]] = deque()
        self._open = self._most = 0
        self._caller = threading.local()
        self._backoff = 0.0
        self._refused_at = self._refused_until = 0.0
        # The server's last refusal, until it gives a connection again.
        self._refusal: str | None = None

    def connect(self) -> PoolProxiedConnection:
        """Return a connection; the deadline is that of all attempts together."""
        self._caller.until = time.monotonic() + self._wait
        while True:
            self._caller.asked = time.monotonic()
            try:
                return super().connect()
            except PoolTimeout:
                if self._refusal is None:
                    raise
                raise psycopg.errors.TooManyConnections(self._refusal) from None
            except psycopg.OperationalError as error:
                if not none_left(error):
                    raise
                self._back_off(str(error))

    def recreate(self) -> "PatientPool":
        """Return an empty pool made like this one."""
        again = PatientPool(
            self._creator,
            self._size,
            self._wait,
            self._idle_seconds,
            **{**self._options, "_dispatch": self.dispatch, "dialect": self._dialect},
        )
        again.on_wait = self.on_wait
        return again

    def dispose(self) -> None:
        """Close what is idle."""
        self._close_idle(float("inf"))

    def status(self) -> str:
        """Return how many connections are open and how many of them idle."""
        return f"{self._open} of {self._size} connections open, {len(self._idle)} idle"

    def use(self) -> PoolUse:
        """Return its use since the last call of this, or since it was made."""
        with self._changed:
            now = self._open - len(self._idle)
            most, self._most = max(self._most, now), now
        return PoolUse(self._size, most)

    def _do_get(self) -> ConnectionPoolEntry:
        return self._idle_or_room() or self._made()

    def _idle_or_room(self) -> ConnectionPoolEntry | None:
        """Take an idle connection, or room for another (None); wait for either."""
        since: float | None = None
        try:
            with self._changed:
                while not self._idle and not self._has_room():
                    since = since or time.monotonic()
                    self._changed.wait(self._patience())
                taken = self._idle.pop()[0] if self._idle else None
                self._open += taken is None
                self._most = max(self._most, self._open - len(self._idle))
            return taken
        finally:
            if since is not None and self.on_wait is not None:
                self.on_wait(time.monotonic() - since)

    def _has_room(self) -> bool:
        now = time.monotonic()
        if self._open >= self._size or now < self._refused_until:
            return False
        # After a refusal one thread at a time tries again.
        self._refused_until = now + self._backoff
        self._caller.asked = now
        return True

    def _patience(self) -> float:
        """Return how long to wait now, in seconds. Raises `PoolTimeout` at the deadline."""
        now = time.monotonic()
        left: float = self._caller.until - now
        if left <= 0:
            raise PoolTimeout(f"no connection within {self._wait} s: {self.status()}")
        # One that comes back is taken sooner; until then the server is left alone.
        return min(left, self._refused_until - now) if self._open < self._size else left

    def _made(self) -> ConnectionPoolEntry:
        try:
            made = self._create_connection()
        except BaseException:
            self._forget()
            raise
        with self._changed:
            self._backoff = self._refused_until = 0.0
            self._refusal = None
            self._changed.notify_all()
        return made

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        if record.dbapi_connection is None:
            self._forget()
            return
        now = time.monotonic()
        with self._changed:
            self._idle.append((record, now))
            self._changed.notify()
        self._close_idle(now - self._idle_seconds)

    def _close_idle(self, since: float) -> None:
        """Close what has been idle since this moment or longer."""
        while True:
            with self._changed:
                if not self._idle or self._idle[0][1] > since:
                    return
                record, _ = self._idle.popleft()
            record.close()
            self._forget()

    def _forget(self) -> None:
        """Make room for another connection."""
        with self._changed:
            self._open -= 1
            self._changed.notify()

    def _back_off(self, refusal: str) -> None:
        """Leave the server alone for a moment, longer each time."""
        with self._changed:
            # Several threads that asked at the same time are refused once.
            if self._caller.asked < self._refused_at:
                return
            if not self._backoff:
                _log.warning("connections_refused", open=self._open, wanted=self._size)
            longer = max(2 * self._backoff, _FIRST_BACKOFF_SECONDS)
            self._backoff = min(longer, _LONGEST_BACKOFF_SECONDS)
            self._refusal = refusal
            self._refused_at = time.monotonic()
            pause = self._backoff * random.uniform(0.5, 1.0)  # noqa: S311  # spreads processes
            self._refused_until = self._refused_at + pause
