"""The database: whether it has this release's schema, and takes writes.

A database may answer every read and refuse every write: its disk is full, or it is set read-only. A
standby that answers is not the database.
"""

import re
from functools import cache
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from app.core.health import gauges
from app.core.health.parts import Part, failed, ok
from app.core.master_keys import key_registry
from app.database import Database, cursor
from app.errors import Unavailable
from app.lib.crypto.sealing import MasterKeys

_FOLDER = Path(__file__).resolve().parents[3] / "migrations" / "versions"
_BEFORE = re.compile(r'^down_revision = "(\w+)"$', re.MULTILINE)
_MIGRATE = "python -m app.manage migrate"

# A row alone proves no write: on a full disk it is still updated, in the page it has. 70 kB of a
# set that does not fit into its memory are written to a temporary file, where the database's own
# files are.
_TAKE_DISK: Final = """
SET LOCAL work_mem = '64kB';
SET LOCAL temp_tablespaces = '';
SELECT count(*) FROM generate_series(1, 5000)
"""
STANDBY: Final = "a standby answers, and no primary"
_PROMOTE = "set DATABASE_URL to the primary, or promote this one"
_NO_WRITES = "#the-database-takes-no-writes"
# Why a write is refused, and what mends it.
_REFUSALS: Final = {
    psycopg.errors.DiskFull.sqlstate: (
        "its disk is full",
        "free or add disk space on PostgreSQL's host",
    ),
    psycopg.errors.ReadOnlySqlTransaction.sqlstate: (
        "default_transaction_read_only is on",
        "reset default_transaction_read_only on server, role and URL",
    ),
}


def is_current(database: Database) -> bool:
    """Say whether the database has every migration of this release (it may have more).

    One statement. Raises `Unavailable`, also for a standby.
    """
    try:
        row = database.ask("SELECT version_num, pg_is_in_recovery() FROM alembic_version", ())
    except psycopg.errors.UndefinedTable:
        return False
    if row is not None and row[1]:
        # A connection is made to a primary alone; what a pooler leads to may change behind it.
        database.pool.renew()
        raise Unavailable(STANDBY)
    return row is not None and row[0] not in superseded()


@cache
def superseded() -> frozenset[str]:
    """Return the revisions that a later migration of this release supersedes."""
    texts = (file.read_text("utf-8") for file in _FOLDER.glob("*.py"))
    return frozenset(revision for text in texts for revision in _BEFORE.findall(text))


def presence(database: Database) -> Part:
    """Return whether the database answers, with this release's schema."""
    try:
        if is_current(database):
            return ok("it answers", name="database")
    except Unavailable as error:
        if is_standby(error):
            return failed(STANDBY, _PROMOTE, _NO_WRITES, name="database")
        return failed("away", "bring PostgreSQL back", name="database")
    behind = f"behind this release: run `{_MIGRATE}`"
    return failed(behind, _MIGRATE, "#upgrading", name="database")


def is_standby(error: BaseException | None) -> bool:
    """Say whether a connection failed because its server is a standby."""
    while error is not None:
        # libpq's words for what is not the primary that was asked for.
        if STANDBY in str(error) or "server is in hot standby mode" in str(error):
            return True
        error = error.__cause__
    return False


def writes(database: Database, master_keys: MasterKeys) -> Part:
    """Return whether the database takes writes, or why it refuses them, with its SQLSTATE.

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
        reason, mend = _REFUSALS.get(state, ("see the database's log", "see PostgreSQL's log"))
        return failed(f"refused: {reason} ({state})", mend, see=_NO_WRITES)
    return ok("it takes writes")


def _sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of the first of an error's causes that has one."""
    while error is not None:
        state = getattr(error, "sqlstate", None)
        if state is not None:
            return str(state)
        error = error.__cause__
    return None
