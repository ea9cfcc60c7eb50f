"""Databases of a test's own: copies of one that is migrated once."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, text

from app import migrations
from app.settings import Settings
from dev.stores.postgres import SERVICE, EmbeddedPostgres

# To migrate a database takes a second; a copy is there in 30 ms.
_COPY = f"CREATE DATABASE {{}} TEMPLATE {SERVICE} STRATEGY file_copy"

# The rows that migrations leave, in a schema of their own.
_KEEP_ROWS = """
CREATE SCHEMA as_migrated;
DO $$ DECLARE written name; BEGIN
  FOR written IN SELECT relname FROM pg_class
      WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        AND relname <> 'alembic_version' AND pg_relation_size(oid) > 0
  LOOP EXECUTE format('CREATE TABLE as_migrated.%I AS TABLE public.%1$I', written); END LOOP;
END $$
"""
# Of the tables that were ever written to: rows only, and no trigger runs.
_EMPTY = """
DO $$ DECLARE written name; BEGIN
  SET LOCAL session_replication_role = replica;
  FOR written IN SELECT relname FROM pg_class
      WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        AND relname <> 'alembic_version' AND pg_relation_size(oid) > 0
  LOOP EXECUTE format('DELETE FROM public.%I', written); END LOOP;
  FOR written IN SELECT relname FROM pg_class WHERE relnamespace = 'as_migrated'::regnamespace
  LOOP EXECUTE format('INSERT INTO public.%I TABLE as_migrated.%1$I', written); END LOOP;
END $$
"""
# What tests have changed of a schema, and anything like it.
_SCHEMA = """
SELECT md5(concat_ws(' ',
  (SELECT string_agg(v.version_num, ' ') FROM alembic_version AS v),
  (SELECT string_agg(concat_ws(' ', c.oid, c.relname, c.relacl, c.relrowsecurity, c.reloptions,
                               c.relchecks, c.relnatts, c.relhastriggers), ' ' ORDER BY c.oid)
     FROM pg_class AS c WHERE c.relnamespace = 'public'::regnamespace),
  (SELECT string_agg(concat_ws(' ', x.indexrelid, x.indisvalid), ' ' ORDER BY x.indexrelid)
     FROM pg_index AS x),
  (SELECT string_agg(concat_ws(' ', t.oid, t.tgenabled), ' ' ORDER BY t.oid)
     FROM pg_trigger AS t),
  (SELECT string_agg(concat_ws(' ', p.oid, p.prosrc, p.proacl, p.proconfig), ' ' ORDER BY p.oid)
     FROM pg_proc AS p WHERE p.pronamespace = 'public'::regnamespace)))
"""


def make_template(server: EmbeddedPostgres) -> None:
    """Migrate the server's own database, then close it: PostgreSQL copies what nobody uses."""
    migrations.migrate(sqlalchemy_url(server.admin_url), app_url=sqlalchemy_url(server.url))
    with psycopg.connect(server.admin_url) as connection:
        connection.execute(_KEEP_ROWS.encode())
    allow_connections(server, allowed=False)


def allow_connections(server: EmbeddedPostgres, *, allowed: bool) -> None:
    """Open or close the server's own database."""
    _as_owner(server, f"ALTER DATABASE {SERVICE} ALLOW_CONNECTIONS {allowed}")


def copy_template(server: EmbeddedPostgres, name: str) -> None:
    """Make a database of this name, empty and migrated, that stays."""
    _as_owner(server, _COPY.format(name))


def _as_owner(server: EmbeddedPostgres, command: str) -> None:
    with psycopg.connect(of_database(server.admin_url, "postgres"), autocommit=True) as connection:
        connection.execute(command.encode())


def empty(owner: Engine) -> None:
    """Delete every row but those of the migrations, as the database's owner.

    It takes 2 ms; a copy writes 360 files.
    """
    execute(owner, _EMPTY)


@contextmanager
def made_database(settings: Settings, admin_engine: Engine) -> Iterator[Settings]:
    """Make an empty, migrated database for the length of a `with`; yield settings that name it."""
    name = f"copy_{secrets.token_hex(6)}"
    owner = admin_engine.execution_options(isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        connection.execute(text(_COPY.format(name)))
    yield replace(
        settings,
        database_url=of_database(settings.database_url, name),
        database_admin_url=of_database(settings.database_admin_url, name),
    )
    with owner.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


class SpareDatabase:
    """A database for tests that need an empty one, and may do anything to it, one after the other.

    It is emptied for the next test; copied anew after one that changed its schema.
    """

    def __init__(self, settings: Settings, admin_engine: Engine) -> None:
        self._settings = settings
        self._admin_engine = admin_engine
        self._copy = ExitStack()
        self._owner: Engine | None = None
        self._schema = ""

    def fresh(self) -> Settings:
        """Return settings that name the database, which is empty and migrated."""
        if self._owner is None or _schema(self._owner) != self._schema:
            self.close()
            self._settings = self._copy.enter_context(
                made_database(self._settings, self._admin_engine)
            )
            self._owner = create_engine(self._settings.database_admin_url, pool_pre_ping=True)
            self._copy.callback(self._owner.dispose)
            self._schema = _schema(self._owner)
        empty(self._owner)
        return self._settings

    def close(self) -> None:
        """Drop the database."""
        self._copy.close()


def _schema(owner: Engine) -> str:
    return str(scalar(owner, _SCHEMA))


def of_database(url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    return f"{url.rpartition('/')[0]}/{name}"


def sqlalchemy_url(url: str) -> str:
    """Return a URL with the driver's name in it."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def execute(owner: Engine, sql: str, /, **values: Any) -> None:
    """Do something to a database as its owner, behind the service's back."""
    with owner.begin() as connection:
        connection.execute(text(sql), values)


def scalar(owner: Engine, query: str, /, **values: Any) -> Any:
    """Look something up in a database as its owner."""
    with owner.connect() as connection:
        return connection.scalar(text(query), values)


def waiting(engine: Engine, query: str = "") -> int:
    """Return how many statements of the database wait for a lock, or of those that match."""
    found = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND query ~ :query"
    )
    return int(scalar(engine, found, query=query))
