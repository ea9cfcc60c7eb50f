"""The engine of a process, its pool of connections that notice a dead server, and pipelines."""

import asyncio
import logging
import random
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
import structlog
from psycopg.abc import PQGen
from psycopg.rows import RowFactory
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool
from sqlalchemy.util.queue import Empty

_Row = TypeVar("_Row")
_log = structlog.get_logger(__name__)
# Where SQLAlchemy logs each use of a connection, by the pool's module.
logging.getLogger(__name__).setLevel(logging.WARNING)

# By default TCP says after two hours that a host is gone; these say so within eleven seconds.
_NOTICE_A_DEAD_SERVER = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# A caller who waits looks again whether there is room: a connection that could not be made
# leaves room, and wakes nobody.
_LOOK_AGAIN_SECONDS = 0.5
_BACKOFF_SECONDS = (0.05, 0.2)
_NONE_LEFT = psycopg.errors.TooManyConnections.sqlstate
# libpq gives no SQLSTATE for a connection that fails, only the text: PostgreSQL's four, for a role,
# a database, all and the reserved ones, and PgBouncer's.
_NONE_LEFT_TEXTS = (
    "too many connections for",
    "too many clients already",
    "remaining connection slots",
    "no more connections allowed",
)
_NEW = "record_service.new"
# An operator who sets a primary read-only for a while has it reconnected to no more often.
_RENEW_AGAIN_SECONDS = 1.0
# Connections that are closed when they come back.
close_after_use: WeakSet[psycopg.Connection[Any]] = WeakSet()


def none_left(error: psycopg.Error) -> bool:
    """Say whether the server refused a connection because it has none left (SQLSTATE 53300)."""
    text = str(error)
    return error.sqlstate == _NONE_LEFT or any(each in text for each in _NONE_LEFT_TEXTS)


def _is_event_loop() -> bool:
    try:
        # A loop that was left by a switch of greenlets, as a browser's driver does, runs no task.
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class _WouldWait(Exception):
    """There is no idle connection, or only one that would have to be made anew."""


class PatientPool(QueuePool):
    """SQLAlchemy's pool, last in, first out, that also waits while the server has none left.

    A caller waits at most `patience` seconds, and then gets SQLAlchemy's `TimeoutError` or the
    server's refusal; any other failure to connect is told at once. `on_wait` gets the seconds of
    each wait for a connection, also of one in vain.
    """

    patience = 10.0
    on_wait: Callable[[float], None] | None = None
    _most = 0
    _is_refused = False

    def connect(self) -> PoolProxiedConnection:
        """Return a connection; the patience is that of all attempts together.

        Raises `RuntimeError` on an event loop, where nothing may wait for a database.
        """
        if _is_event_loop():
            raise RuntimeError("An event loop's thread asked for a connection.")
        began = time.monotonic()
        waits = self._pool.empty() and self._overflow >= self._max_overflow
        try:
            while True:
                try:
                    connection = super().connect()
                except PoolTimeout:
                    if time.monotonic() - began >= self.patience:
                        raise
                except psycopg.OperationalError as error:
                    if not none_left(error) or time.monotonic() - began >= self.patience:
                        raise
                    if not self._is_refused:
                        _log.warning(
                            "connections_refused", open=self.checkedout(), wanted=self.size()
                        )
                    self._is_refused = waits = True
                    time.sleep(random.uniform(*_BACKOFF_SECONDS))  # noqa: S311  # spreads processes
                else:
                    self._is_refused = False
                    self._most = max(self._most, self.checkedout())
                    return connection
        finally:
            if waits and self.on_wait is not None:
                self.on_wait(time.monotonic() - began)

    def renew(self) -> None:
        """Have every open connection replaced: they lead to a server that is no primary now."""
        # What SQLAlchemy itself holds each connection's age against.
        if time.time() - self._invalidate_time > _RENEW_AGAIN_SECONDS:
            self._invalidate_time = time.time()

    def idle(self) -> PoolProxiedConnection | None:
        """Return an idle connection, for an event loop; None if that would take a wait."""
        try:
            connection = super().connect()
        except _WouldWait:
            return None
        self._most = max(self._most, self.checkedout())
        return connection

    def _do_get(self) -> ConnectionPoolEntry:
        if not _is_event_loop():
            return super()._do_get()
        try:
            return self._pool.get(block=False)
        except Empty:
            raise _WouldWait from None

    def recreate(self) -> "PatientPool":
        """Return an empty pool made like this one."""
        again = super().recreate()
        assert isinstance(again, PatientPool)  # noqa: S101  # narrows the type
        again.patience, again.on_wait = self.patience, self.on_wait
        return again

    def most_in_use(self) -> int:
        """Return how many were in use at once since the last call, or since it was made."""
        now = self.checkedout()
        most, self._most = max(self._most, now), now
        return most


def pooled_engine(url: str, pool_size: int, **options: Any) -> Engine:
    """Return an engine with a `PatientPool`; nothing is connected yet. `options` are libpq's.

    A server that is a standby is no connection, unless `target_session_attrs` says otherwise. An
    idle connection that is readable when it is taken out was closed by the server, so all are
    replaced: this costs microseconds, SQLAlchemy's pre-ping a round trip.
    """
    # What a server of version 14 or newer tells of itself as it connects: no round trip.
    wanted = make_url(url).query.get("target_session_attrs", "primary")
    libpq = {"connect_timeout": 5, "target_session_attrs": wanted, **_NOTICE_A_DEAD_SERVER}
    engine = create_engine(
        url,
        hide_parameters=True,
        isolation_level="AUTOCOMMIT",
        poolclass=PatientPool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=_LOOK_AGAIN_SECONDS,
        pool_use_lifo=True,
        pool_recycle=1800,
        connect_args={**libpq, **options},
    )
    event.listen(engine, "do_connect", _refuse_on_loop)
    event.listen(engine, "connect", _note_new)
    event.listen(engine, "checkout", _refuse_closed)
    event.listen(engine, "checkin", _close_swollen)
    return engine


def _refuse_on_loop(*_: object) -> None:
    if _is_event_loop():
        raise _WouldWait


def _note_new(_connection: object, entry: ConnectionPoolEntry) -> None:
    # It is not looked at: the pool replaces only twice, then raises another error.
    entry.info[_NEW] = True


def _close_swollen(
    connection: "psycopg.Connection[Any] | None", entry: ConnectionPoolEntry
) -> None:
    if connection in close_after_use:
        entry.close()


def _refuse_closed(
    connection: "psycopg.Connection[object]", entry: ConnectionPoolEntry, _proxy: object
) -> None:
    if entry.info.pop(_NEW, False):
        return
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise InvalidatePoolError


class SyncedPipeline(psycopg.Pipeline):
    """Sends nothing before a Sync, where psycopg sends each statement as it is executed.

    The server counts a client's silence in a transaction from Sync on. A host that is cut off
    between a statement and its Sync would keep its locks until TCP notices.
    """

    def _enqueue_sync(self) -> None:
        super()._enqueue_sync()
        # All at once into libpq's buffer: psycopg waits for the socket before each command.
        while self.command_queue:
            self.command_queue.popleft()()

    def _communicate_gen(self) -> PQGen[None]:
        if not self.command_queue:
            yield from super()._communicate_gen()


class SyncedCursor(psycopg.Cursor[_Row]):
    """Ends a pipelined batch with Sync when a result is fetched, where psycopg only flushes."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        pipeline: psycopg.Pipeline,
        row_factory: RowFactory[_Row],
    ) -> None:
        super().__init__(connection, row_factory=row_factory)
        self._batch = pipeline

    def _fetch_pipeline(self) -> None:
        if self.pgresult is None and self.connection.info.pipeline_status:
            self._batch.sync()
        super()._fetch_pipeline()


@contextmanager
def synced_pipeline(connection: psycopg.Connection[Any]) -> Iterator[psycopg.Pipeline]:
    """Open such a pipeline on a connection, for the length of the `with`."""
    # It enters the pipeline that is there, and makes psycopg's own only where there is none.
    connection._pipeline = SyncedPipeline(connection)  # noqa: SLF001  # psycopg has no other way
    with connection.pipeline() as pipeline:
        yield pipeline
