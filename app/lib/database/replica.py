"""A replica for reads: taken only where it has all that the primary had when the read began.

So a caller reads what was written before, by whom and through whichever process. One that is away
or behind is passed over.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import psycopg
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from app.lib.breaker import Breaker
from app.lib.database.pool import PatientPool, pooled_engine

# WAL is replayed some milliseconds after the commit; one that has fallen behind is not waited for.
_PATIENCE_SECONDS = 0.05
_LOOK_AGAIN_SECONDS = 0.002
_BREAK_SECONDS = 5.0
# A read that waits for a replica could be the primary's.
_IMPATIENT = {"connect_timeout": 2, "tcp_user_timeout": 3_000}
_HAS_ALL = "SELECT pg_is_in_recovery() AND pg_last_wal_replay_lsn() >= %s::pg_lsn"


@dataclass(slots=True)
class Reading:
    """A read that may go to a replica; its first transaction decides, for all of them."""

    from_replica: bool | None = None


_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)


@contextmanager
def preferred() -> Iterator[Reading]:
    """Let the transactions of this context read from a replica, if there is one that is fit."""
    reading = Reading()
    token = _reading.set(reading)
    try:
        yield reading
    finally:
        _reading.reset(token)


class Replica:
    """A pool of connections to a replica, and whether a read may use it."""

    def __init__(
        self, url: str, pool_size: int, on_read: Callable[[str], None], **options: object
    ) -> None:
        """Connect to nothing yet. `on_read` gets where a read goes: `replica`, or why it does not.

        That is `behind` or `away`. `options` are libpq's.
        """
        wanted = make_url(url).query.get("target_session_attrs", "any")
        self.engine: Engine = pooled_engine(
            url, pool_size, target_session_attrs=wanted, **_IMPATIENT, **options
        )
        if isinstance(self.engine.pool, PatientPool):
            self.engine.pool.patience = 0.0
        self._on_read = on_read
        self._breaker = Breaker(_BREAK_SECONDS)

    def is_taken(self, position: Callable[[], str]) -> bool:
        """Say whether the present read goes to the replica.

        `position` asks the primary how far its WAL is written; it is called once a read.
        """
        reading = _reading.get()
        if reading is None:
            return False
        if reading.from_replica is None:
            where = self._where(position)
            self._on_read(where)
            reading.from_replica = where == "replica"
        return reading.from_replica

    def _where(self, position: Callable[[], str]) -> str:
        if not self._breaker.admits():
            return "away"
        wanted = position()
        try:
            has_all = self._has_all(wanted)
        except (psycopg.Error, SQLAlchemyError):
            self._breaker.failed()
            return "away"
        self._breaker.succeeded()
        return "replica" if has_all else "behind"

    def _has_all(self, wanted: str) -> bool:
        until = time.monotonic() + _PATIENCE_SECONDS
        with self.engine.connect() as connection:
            while True:
                answer = connection.exec_driver_sql(_HAS_ALL, (wanted,)).scalar()
                if answer or time.monotonic() > until:
                    return bool(answer)
                time.sleep(_LOOK_AGAIN_SECONDS)
