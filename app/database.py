"""The only way to PostgreSQL, and the only place that commits.

A transaction opens in a route, an actor or a command and is handed down as a SQLAlchemy `Session`;
returning commits, raising rolls back. `transaction(tenant)` also tells PostgreSQL whose rows may be
seen (row-level security reads `app.tenant_id`), so a query that forgets its tenant finds nothing.
What must work across tenants goes through `across_tenants()`, the one named door.

All settings are `SET LOCAL`, no session locks, no LISTEN and no automatic prepared statements: the
service runs behind PgBouncer in transaction mode.
"""

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, overload
from uuid import UUID

import psycopg
from psycopg.rows import RowFactory, TupleRow, tuple_row
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from app.errors import Unavailable
from app.queue import Bell

_Row = TypeVar("_Row")

_HOOKS = "after_commit"
# Of the driver too: raw cursors raise its own errors. Deadlocks, lock timeouts and terminated
# connections are among them; whoever tries again may succeed.
_AWAY = (
    OperationalError,
    InterfaceError,
    DisconnectionError,
    PoolTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
)
_THIS_TENANT = text("SELECT set_config('app.tenant_id', :tenant, true)")
_EVERY_TENANT = text("SELECT set_config('app.every_tenant', 'on', true)")


class Database:
    """A pool of connections to one PostgreSQL database; one a process, shared by its threads."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        application: str = "record-service",
        bell: Bell | None = None,
        first_wait: timedelta = timedelta(0),
    ) -> None:
        """Prepare the pool; nothing is connected until the first transaction.

        `pool_size` bounds the connections of this process; a caller waits at most 10 s for one.
        `bell` is rung after commits, `first_wait` is how long a delivery waits for its first
        attempt; sessions carry both in `info`.
        """
        self.engine = create_engine(
            url,
            hide_parameters=True,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=10,
            pool_use_lifo=True,
            pool_recycle=1800,
            connect_args={
                "prepare_threshold": None,
                "connect_timeout": 5,
                "application_name": application,
            },
        )
        event.listen(self.engine, "checkout", _refuse_closed)
        # Responses are written after the commit, from objects that must still be readable then.
        self._sessions = sessionmaker(
            self.engine,
            expire_on_commit=False,
            info={"bell": bell or Bell(None), "first_wait": first_wait},
        )

    @contextmanager
    def transaction(self, tenant_id: UUID, *, snapshot: bool = False) -> Iterator[Session]:
        """Open a transaction that sees one tenant's rows.

        With `snapshot` every statement sees the same moment (REPEATABLE READ). Raises `Unavailable`
        when the database is away, whatever was asked of it.
        """
        with self._transaction(snapshot) as session:
            session.execute(_THIS_TENANT, {"tenant": str(tenant_id)})
            yield session
        _run_hooks(session)

    @contextmanager
    def across_tenants(self, *, snapshot: bool = False) -> Iterator[Session]:
        """Open a transaction that sees every tenant's rows.

        For what has no tenant yet (looking a key up) or serves them all (sweep, flusher, clock).
        """
        with self._transaction(snapshot) as session:
            session.execute(_EVERY_TENANT)
            yield session
        _run_hooks(session)

    @contextmanager
    def _transaction(self, snapshot: bool) -> Iterator[Session]:
        try:
            with self._sessions.begin() as session:
                if snapshot:
                    session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
                yield session
        except _AWAY as error:
            raise Unavailable("The database does not answer; try again in a moment.") from error

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


@overload
def cursor(session: Session) -> psycopg.Cursor[TupleRow]: ...
@overload
def cursor(session: Session, rows: RowFactory[_Row]) -> psycopg.Cursor[_Row]: ...
def cursor(session: Session, rows: RowFactory[Any] = tuple_row) -> psycopg.Cursor[Any]:
    """Return a psycopg cursor inside the session's transaction, for the hot paths.

    `rows` is psycopg's row factory; tuples by default. A Core statement built anew costs several
    times the query it sends (docs/performance.md).
    """
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)  # noqa: S101  # narrows the driver's type
    return connection.cursor(row_factory=rows)


def after_commit(session: Session, hook: Callable[[], None]) -> None:
    """Run `hook` once this session's transaction has been committed, and never if it is not."""
    session.info.setdefault(_HOOKS, []).append(hook)


def _refuse_closed(connection: psycopg.Connection[Any], _record: object, _proxy: object) -> None:
    """Replace a pooled connection that the server has closed since its last use.

    An idle connection has nothing to say: if it is readable, the server said goodbye. This costs
    microseconds where a pre-ping costs a round trip.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise DisconnectionError


def _run_hooks(session: Session) -> None:
    for hook in session.info.pop(_HOOKS, ()):
        hook()
