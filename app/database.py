"""The only way to PostgreSQL, and the only place that commits.

Routes, actors and commands open a transaction and hand it down. `transaction(tenant)` sees one
tenant's rows (row-level security), `across_tenants()` all. For PgBouncer in transaction mode,
settings are `SET LOCAL`; no session locks, no LISTEN, no prepared statements by default.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString, TypeAlias, TypeVar, overload
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import RowFactory, TupleRow, tuple_row
from psycopg.waiting import wait_async
from sqlalchemy import PoolProxiedConnection, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from app import metrics
from app.errors import Unavailable
from app.lib.database.pool import (
    PatientPool,
    SyncedCursor,
    close_after_use,
    pooled_engine,
    synced_pipeline,
)
from app.lib.database.replica import Replica
from app.lib.metric_registry import Tally
from app.queue import Bell, WakeupBatcher
from app.settings import Process, Settings

_Row = TypeVar("_Row")

_HOOKS = "after_commit"
_LARGE = 256 * 1024
# Behind a pooler, what became a standby; or a primary that is set read-only.
_ONLY_READS = psycopg.errors.ReadOnlySqlTransaction
_NO_WRITES = (_ONLY_READS, psycopg.errors.DiskFull)
# Errors after which a retry may succeed, deadlocks, lock timeouts and terminated connections among
# them. The driver's are listed too: raw cursors raise them.
_AWAY = (
    OperationalError,
    InterfaceError,
    DisconnectionError,
    PoolTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    _ONLY_READS,
)
# Waiters for a locked row give up and retry before the pool's connections run out.
_LOCK_TIMEOUT = "2s"
# A forbidden scan that is taken all the same counts ten billion: where PostgreSQL has LLVM, as on
# Debian, it would compile that query, for a second or two each time (`jit`).
_SET_TENANT = f"""
SELECT set_config('app.tenant_id', %s, true), set_config('lock_timeout', '{_LOCK_TIMEOUT}', true),
       set_config('idle_in_transaction_session_timeout', %s, true),
       set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)
"""


# psycopg looks at a socket so often although nothing has come: it has no "never".
_LOOK_AGAIN_SECONDS = 60.0


@dataclass(eq=False)
class RawTransaction:
    """A transaction without the ORM's session, which costs more than the statements in it.

    For the hot paths; everything that takes a `Tx` works in either.
    """

    connection: psycopg.Connection[Any]
    info: dict[str, Any]
    pipeline: psycopg.Pipeline | None = None


Tx: TypeAlias = Session | RawTransaction


class Database:
    """A pool of connections to one PostgreSQL database; one a process, shared by its threads."""

    # The server ends a transaction that is idle for so long, since others wait for its rows.
    idle_seconds = 5.0

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        application: str = "record-service",
        bell: Bell | None = None,
        first_wait: timedelta = timedelta(0),
        prepare_threshold: int | None = None,
        on_wait: Callable[[float], None] | None = None,
        replica: Replica | None = None,
    ) -> None:
        """Prepare the pool; nothing is connected until the first transaction.

        `pool_size` bounds this process's connections; a caller waits at most 10 s for one.
        `prepare_threshold` is how often a statement is sent before it is prepared; None: never.
        `bell` is rung after commits; `first_wait` delays a delivery's first attempt. `on_wait` gets
        the seconds of each wait for a connection, timeouts included. From a `replica` only those
        read who say that they prefer it.
        """
        self.engine = pooled_engine(
            url, pool_size, application_name=application, prepare_threshold=prepare_threshold
        )
        self.pool.on_wait = on_wait
        bell = bell or Bell(None)
        self._wakeups = WakeupBatcher(bell)
        self._info = {"bell": bell, "wakeups": self._wakeups, "first_wait": first_wait}
        # Responses are written after the commit, from objects that must still be readable then.
        self._sessions = sessionmaker(self.engine, expire_on_commit=False, info=self._info)
        self.replica = replica
        if replica is not None:
            self._reads = sessionmaker(replica.engine, expire_on_commit=False, info=self._info)

    @classmethod
    def of(cls, settings: Settings, process: Process, bell: Bell, tally: Tally) -> "Database":
        """Prepare the pool of a web or worker process, by its share of the connections."""

        def waited(seconds: float) -> None:
            tally.observe(metrics.POOL_WAIT_SECONDS, seconds, process)

        size, name = settings.connections_of(process), f"record-service {process}"
        threshold = settings.database_prepare_threshold
        replica = None
        if process == "web" and settings.database_replica_url is not None:
            replica = Replica(
                settings.database_replica_url,
                size,
                lambda where: tally.add(metrics.REPLICA_READS, where),
                application_name=name,
                prepare_threshold=threshold,
            )
        return cls(
            settings.database_url,
            pool_size=size,
            application=name,
            bell=bell,
            first_wait=settings.first_wait,
            prepare_threshold=threshold,
            on_wait=waited,
            replica=replica,
        )

    def transaction(
        self, tenant_id: UUID, *, snapshot: bool = False
    ) -> AbstractContextManager[Session]:
        """Open a transaction that sees one tenant's rows.

        With `snapshot` every statement sees the same moment (REPEATABLE READ). Any statement may
        raise `Unavailable`, when the database is away; of a read that prefers a replica also when
        it writes, or the replica does not let it end.
        """
        scope = f"app.tenant_id = '{tenant_id}'"
        if self.replica is not None and self.replica.is_taken(self._position):
            return self._transaction(scope, snapshot=snapshot, sessions=self._reads)
        return self._transaction(scope, snapshot=snapshot)

    def _position(self) -> str:
        """Return where the primary's WAL ends: beyond each commit that anybody can see."""
        # Not how far it is written: a commit that waits for no disk is seen before.
        row = self.ask("SELECT pg_current_wal_insert_lsn()::text", ())
        return str(row[0]) if row else ""

    def across_tenants(
        self, *, snapshot: bool = False, scans: bool = True
    ) -> AbstractContextManager[Session]:
        """Open a transaction that sees every tenant's rows.

        For work on all tenants: sweep, flusher, clock. Raises as `transaction` does. Without
        `scans` no table is read as a whole that has an index for it: while an old snapshot stands,
        one with few rows is large.
        """
        scope = "app.every_tenant = 'on'"
        if not scans:
            scope += "; SET LOCAL enable_seqscan = off"
        return self._transaction(scope, snapshot=snapshot)

    @contextmanager
    def raw_transaction(self, tenant_id: UUID) -> Iterator[RawTransaction]:
        """Open a transaction for a hot path: as `transaction`, without the ORM and `scans`.

        Statements are pipelined: they go out together when a result is fetched, or with the COMMIT.
        So a statement that fails may raise only there, and `rowcount` is not known before a fetch.
        """
        with self._translated(), self._connection() as connection:
            try:
                with synced_pipeline(connection) as pipeline:
                    opened = RawTransaction(connection, dict(self._info), pipeline)
                    connection.execute("BEGIN")
                    connection.execute(_SET_TENANT, (str(tenant_id), self._idle_timeout))
                    yield opened
                    connection.execute("COMMIT")
            except BaseException:
                if not connection.closed:
                    connection.rollback()
                raise
        _run_hooks(opened)

    @contextmanager
    def statement(self) -> Iterator[RawTransaction]:
        """Open a connection for one autocommitted statement: one round trip.

        It sees no tenant's rows, except through a database function that takes the tenant.
        Hooks run and errors are raised as in `transaction`.
        """
        with self._translated(), self._connection() as connection:
            opened = RawTransaction(connection, dict(self._info))
            yield opened
        _run_hooks(opened)

    @asynccontextmanager
    async def awaited_statement(self) -> AsyncIterator[RawTransaction]:
        """Open a connection as `statement` does, on an event loop: for one `rows_of`."""
        with self._translated():
            pooled = self.pool.idle()
            if pooled is None:
                pooled = await asyncio.to_thread(self.engine.raw_connection)
            connection = _driver(pooled)
            opened = RawTransaction(connection, dict(self._info))
            try:
                yield opened
            finally:
                # One whose statement was given up is of no use to others.
                if connection.info.transaction_status is TransactionStatus.IDLE:
                    pooled.close()
                else:
                    pooled.invalidate()
        _run_hooks(opened)

    def ask(self, query: LiteralString, values: Sequence[object]) -> tuple[Any, ...] | None:
        """Return the first row of one autocommitted statement: one round trip.

        It sees no tenant's rows, except through a database function made for it.
        """
        with self._translated(), self._connection() as connection:
            return connection.execute(query, values).fetchone()

    @property
    def pool(self) -> PatientPool:
        """The connections of this process, and how many were in use lately."""
        pool = self.engine.pool
        assert isinstance(pool, PatientPool)  # noqa: S101  # narrows the engine's type
        return pool

    @property
    def _idle_timeout(self) -> str:
        return f"{self.idle_seconds * 1000:.0f}ms"

    @contextmanager
    def _translated(self, *, on_primary: bool = True) -> Iterator[None]:
        try:
            yield
        except (*_AWAY, DBAPIError) as error:
            cause = getattr(error, "orig", error)
            if isinstance(cause, _ONLY_READS):
                # A connection that was lost: the next one finds the primary.
                if on_primary:
                    self.pool.renew()
            elif not isinstance(error, _AWAY) and not error.connection_invalidated:
                raise
            raise _unavailable(error) from error

    @contextmanager
    def _transaction(
        self, scope: str, *, snapshot: bool, sessions: "sessionmaker[Session] | None" = None
    ) -> Iterator[Session]:
        """Open a transaction that sees the rows of `scope`, in one round trip.

        The connections are in autocommit mode, so neither the driver nor SQLAlchemy begins one.
        """
        level = "ISOLATION LEVEL REPEATABLE READ" if snapshot else ""
        begin = (
            f"BEGIN {level}; SET LOCAL {scope};"
            f" SET LOCAL idle_in_transaction_session_timeout = '{self._idle_timeout}';"
            f" SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'; SET LOCAL jit = off"
        )
        opened = sessions or self._sessions
        with self._translated(on_primary=sessions is None), opened.begin() as session:
            cursor(session).execute(begin.encode(), prepare=False)
            yield session
        _run_hooks(session)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        pooled = self.engine.raw_connection()
        connection = _driver(pooled)
        try:
            yield connection
        finally:
            if connection.closed:
                # Returned as it is, the pool would try to roll it back and log the failure.
                pooled.invalidate()
            else:
                pooled.close()

    def close(self) -> None:
        """Send pending wakeups; close every connection, those in use when they are returned."""
        self._wakeups.close()
        # Disposing closes the idle ones alone.
        event.listen(self.engine, "checkin", lambda _, entry: entry.close())
        self.engine.dispose()
        if self.replica is not None:
            self.replica.engine.dispose()


@overload
def cursor(tx: Tx) -> psycopg.Cursor[TupleRow]: ...
@overload
def cursor(tx: Tx, rows: RowFactory[_Row]) -> psycopg.Cursor[_Row]: ...
def cursor(tx: Tx, rows: RowFactory[Any] = tuple_row) -> psycopg.Cursor[Any]:
    """Return a psycopg cursor inside a transaction: raw SQL, for the hot paths.

    `rows` is psycopg's row factory; tuples by default. A Core statement built anew costs several
    times the query it sends (docs/performance.md).
    """
    if isinstance(tx, RawTransaction) and tx.pipeline is not None:
        return SyncedCursor(tx.connection, tx.pipeline, rows)
    return _connection_of(tx).cursor(row_factory=rows)


async def rows_of(tx: RawTransaction, query: bytes, values: Sequence[object]) -> list[TupleRow]:
    """Return all rows of a statement, for which the event loop of this coroutine does not wait."""
    asked = tx.connection.cursor()
    # As psycopg's asynchronous cursors do, which would need a pool of their own.
    sent = asked._execute_gen(query, values)  # noqa: SLF001
    await wait_async(sent, tx.connection.fileno(), _LOOK_AGAIN_SECONDS)
    return asked.fetchall()


def carried(tx: Tx, size: int) -> None:
    """Note that a value of so many bytes is sent or read: the pool keeps no swollen connection.

    libpq's buffers grow to the longest message and stay so: a pool of them would hold ten times as
    much as all that is worked on.
    """
    if size > _LARGE:
        close_after_use.add(_connection_of(tx))


def _connection_of(tx: Tx) -> psycopg.Connection[Any]:
    if isinstance(tx, RawTransaction):
        return tx.connection
    return _driver(tx.connection().connection)


def after_commit(tx: Tx, hook: Callable[[], None]) -> None:
    """Run `hook` after this transaction has committed; never if it rolls back."""
    tx.info.setdefault(_HOOKS, []).append(hook)


def database_now(session: Session) -> datetime:
    """Return the database's `clock_timestamp()`: the one clock that every host agrees on."""
    moment: datetime = session.execute(text("SELECT clock_timestamp()")).scalar_one()
    return moment


def undone(error: Exception) -> bool:
    """Say whether the server itself has refused the statement, so that nothing of it was done.

    Not after a connection that was lost, which tells nothing; and not where others hold a lock, for
    it may be the next statement's too.
    """
    cause = getattr(error, "orig", error.__cause__ if isinstance(error, Unavailable) else error)
    if not isinstance(cause, psycopg.Error) or isinstance(cause, psycopg.errors.LockNotAvailable):
        return False
    # Classes of SQLSTATE: connection exceptions, and what the operator does.
    return cause.sqlstate is not None and cause.sqlstate[:2] not in ("08", "57")


def _unavailable(error: Exception) -> Unavailable:
    cause = getattr(error, "orig", error)
    if isinstance(cause, _NO_WRITES):
        return Unavailable("The database takes no writes now; try again in a while.")
    if isinstance(cause, psycopg.errors.LockNotAvailable):
        return Unavailable("Another request or job is changing this at the moment; try again.")
    return Unavailable("The database does not answer; try again in a moment.")


def _driver(pooled: PoolProxiedConnection) -> psycopg.Connection[Any]:
    connection = pooled.driver_connection
    assert isinstance(connection, psycopg.Connection)  # noqa: S101  # narrows the driver's type
    return connection


def _run_hooks(tx: Tx) -> None:
    for hook in tx.info.pop(_HOOKS, ()):
        hook()
