"""Bringing a database to this release: schema, partitions ahead of time, rights of the app's role.

Each migration is a transaction, with the rights on what it made; an index on a large table is built
outside any. A lock keeps a second release out. A killed run leaves the schema of one migration.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from app import clock
from app.core import partitions
from app.lib.database.pool import PatientPool

_FOLDER = Path(__file__).resolve().parent.parent / "migrations"
# Any number that no other advisory lock in this database uses.
_LOCK = 7_264_301_558
_TRY_AGAIN_SECONDS = 0.2
# The release before may hold every connection until it is idle.
_WAIT_SECONDS = 90.0
# Privileges of the service's own role on tables where it does not have all.
_RIGHTS = {
    "alembic_version": "SELECT",
    "history_policy": "SELECT",
    "audit_entries": "SELECT, INSERT",
    # Views.
    "deliveries": "SELECT",
    "present_lanes": "SELECT",
}


class MigrationError(RuntimeError):
    """The database cannot be brought to this release; the text is the reason, in one line."""


def migrate(admin_url: str, *, app_url: str, history_days: int = 90) -> str:
    """Bring the database at `admin_url` to this release; return a line on what was done.

    `app_url` names the role that the service itself uses: it gets rights on rows and none on the
    schema, and may not change or delete audit entries. From now on history that is younger than
    `history_days` cannot be dropped. Raises `MigrationError` when the database is away, or newer
    than this code.
    """
    role = make_url(app_url).username
    with _connected(admin_url) as engine, _alone(engine):
        with engine.connect() as connection:
            line = _upgrade(connection, role)
        with engine.begin() as connection:
            partitions.make_partitions(connection, clock.now(), history_days)
            partitions.keep(connection, history_days)
            _grant(connection, role)
    return line


@contextmanager
def _connected(admin_url: str) -> Iterator[Engine]:
    engine = create_engine(
        admin_url,
        poolclass=PatientPool,
        connect_args={"connect_timeout": 10, "target_session_attrs": "primary"},
    )
    assert isinstance(engine.pool, PatientPool)  # noqa: S101  # narrows the type
    engine.pool.patience = _WAIT_SECONDS
    try:
        yield engine
    except OperationalError as error:
        raise MigrationError(f"the database does not answer: {_message(error)}") from error
    except DBAPIError as error:
        raise MigrationError(f"the database refused: {_message(error)}") from error
    finally:
        engine.dispose()


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Hold the lock of all releases, in a transaction that does nothing else (PgBouncer)."""
    while True:
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            # Without parameters: the portal of a query with parameters keeps its snapshot until the
            # next query, and CREATE INDEX CONCURRENTLY waits for all snapshots.
            if connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_LOCK})").scalar():
                yield
                return
        # Not within a statement, which holds a snapshot too.
        time.sleep(_TRY_AGAIN_SECONDS)


def _message(error: DBAPIError) -> str:
    """Return the driver's message, on one line."""
    return " ".join(str(error.orig).split())


def _upgrade(connection: Connection, role: str | None) -> str:
    # Here, since other commands need no Alembic, which is a tenth of their start.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    def grant(**_: Any) -> None:
        # Triggers and functions of tables that the service writes to use the new tables.
        _grant(connection, role)

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    config.attributes["on_version_apply"] = grant
    known = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_revision()
    head = known.get_current_head()
    if current is not None and current not in {
        script.revision for script in known.walk_revisions()
    }:
        raise MigrationError(
            f"the database is at revision {current}, newer than this release ({head}): "
            "deploy the release that made it, or a later one"
        )
    if current == head:
        return f"the database is at revision {head}"
    # Alembic does not commit a transaction that was open before it began.
    connection.rollback()
    command.upgrade(config, "head")
    return f"the database went from revision {current or 'none'} to {head}"


def _grant(connection: Connection, role: str | None) -> None:
    """Give the app's role what it needs, unless it owns the schema anyway."""
    if role is None or role == connection.scalar(text("SELECT current_user")):
        return
    quoted = connection.dialect.identifier_preparer.quote(role)
    # Tables and views; partitions are accessed through their parents' policies.
    query = """
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
       AND relkind IN ('r', 'p', 'v') AND NOT relispartition
    """
    tables = set(connection.scalars(text(query)))
    for statement in (
        f"GRANT USAGE ON SCHEMA public TO {quoted}",
        f"REVOKE ALL ON {', '.join(tables & _RIGHTS.keys())} FROM {quoted}",
        *(f"GRANT {rights_on(table)} ON {table} TO {quoted}" for table in tables),
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {quoted}",
    ):
        connection.execute(text(statement))


def rights_on(table: str) -> str:
    """Return what the service's own role may do to a table, as in a GRANT."""
    return _RIGHTS.get(table, "SELECT, INSERT, UPDATE, DELETE")
