"""Proves that the database takes writes: one row touched, and a few pages of disk taken.

A database may answer every read and refuse every write: its disk is full, it is a standby, or it is
set read-only. A row alone does not tell: on a full disk it is still updated, in the page it has.
"""

from typing import Final

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from app.core.health import gauges
from app.core.master_keys import key_registry
from app.database import Database, cursor
from app.errors import Unavailable
from app.lib.crypto.sealing import MasterKeys

# 70 kB of a set that does not fit into its memory are written to a temporary file, where the
# database's own files are.
_TAKE_DISK: Final = """
SET LOCAL work_mem = '64kB';
SET LOCAL temp_tablespaces = '';
SELECT count(*) FROM generate_series(1, 5000)
"""
_FULL, _READ_ONLY = psycopg.errors.DiskFull.sqlstate, psycopg.errors.ReadOnlySqlTransaction.sqlstate
_REASONS: Final = {
    _FULL: "its disk is full",
    _READ_ONLY: "default_transaction_read_only is on",
}


def refusal(database: Database, master_keys: MasterKeys) -> str | None:
    """Return why the database refuses writes, with its SQLSTATE; None if it takes them.

    Takes two milliseconds. Raises `Unavailable` when the database does not answer.
    """
    try:
        with database.across_tenants() as session:
            gauges.limit_time(session)
            key_registry.touch(session, master_keys)
            cursor(session).execute(_TAKE_DISK, prepare=False)
    except (Unavailable, SQLAlchemyError, psycopg.Error) as error:
        state = _sqlstate(error)
        if state is None:
            raise
        return f"refused: {_reason(database, state)} ({state})"
    return None


def _reason(database: Database, state: str) -> str:
    if state == _READ_ONLY and (database.ask("SELECT pg_is_in_recovery()", ()) or (False,))[0]:
        return "it is a standby"
    return _REASONS.get(state, "see the database's log")


def _sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of the first of an error's causes that has one."""
    while error is not None:
        state = getattr(error, "sqlstate", None)
        if state is not None:
            return str(state)
        error = error.__cause__
    return None
