"""Errors of SQLAlchemy and psycopg that mean "try again", translated into `Unavailable`."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import Unavailable

# The driver's too: raw cursors raise its errors. Deadlocks, lock timeouts and terminated
# connections are among them; a retry may succeed.
_AWAY = (
    OperationalError,
    InterfaceError,
    DisconnectionError,
    PoolTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
)


@contextmanager
def translated() -> Iterator[None]:
    """Raise `Unavailable` for what a retry may cure, with the error as its cause."""
    try:
        yield
    except _AWAY as error:
        raise _unavailable(error) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise _unavailable(error) from error
        raise


def _unavailable(error: Exception) -> Unavailable:
    if isinstance(getattr(error, "orig", error), psycopg.errors.LockNotAvailable):
        return Unavailable("Somebody else is changing this at the moment; try again.")
    return Unavailable("The database does not answer; try again in a moment.")
