"""The embedded PostgreSQL and Valkey: what they keep, whom they let in, and what they survive."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from dev.refusal import CannotStart
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.valkey import EmbeddedValkey
from tests.support.faults import LONG_ENOUGH

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]

ROOT = Path(__file__).resolve().parents[2]

# Starts both stores in a folder, writes to both without end, and says what was acknowledged.
WRITER = """
import itertools, sys
from pathlib import Path
import psycopg, redis
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.valkey import EmbeddedValkey

folder = Path(sys.argv[1])
with EmbeddedPostgres(folder / "postgres") as postgres, EmbeddedValkey(folder / "valkey") as valkey:
    with psycopg.connect(postgres.admin_url, autocommit=True) as rows:
        rows.execute("CREATE TABLE IF NOT EXISTS notes (n int)")
        keys = redis.Redis.from_url(valkey.url)
        for n in itertools.count(1):
            rows.execute("INSERT INTO notes VALUES (%s)", (n,))
            keys.set("n", n)
            print(n, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder for stores, and remove what PostgreSQL had to keep outside of it."""
    yield tmp_path
    for link in tmp_path.rglob("data"):
        if link.is_symlink():
            shutil.rmtree(link.resolve().parent)


def kill(store: EmbeddedPostgres) -> None:
    """End a server as a crash would."""
    assert store.process is not None
    store.process.kill()
    store.process.wait(LONG_ENOUGH)


def test_each_is_durable_and_lets_in_who_has_the_password_the_service_within_its_walls(
    folder: Path,
) -> None:
    with (
        EmbeddedPostgres(folder / "postgres") as postgres,
        EmbeddedValkey(folder / "valkey") as valkey,
    ):
        with psycopg.connect(postgres.url) as connection:
            rights = connection.execute(
                "SELECT rolname, rolsuper, rolbypassrls, rolcreatedb, rolcreaterole"
                " FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            assert rights == ("record_service", False, False, False, False)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("CREATE TABLE public.mine (n int)")
        with psycopg.connect(postgres.admin_url) as connection:
            for setting in ("is_superuser", "fsync", "synchronous_commit"):
                assert connection.execute(f"SHOW {setting}".encode()).fetchone() == ("on",)
        for user in ("postgres", "record_service"):
            url = f"postgresql://{user}:guess@127.0.0.1:{postgres.port}/postgres"
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(url)
        with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with (
            redis.Redis(port=valkey.port) as anonymous,
            pytest.raises(redis.AuthenticationError),
        ):
            anonymous.ping()
    secret_files = [*folder.rglob("secrets"), *folder.rglob("valkey.conf")]
    assert len(secret_files) == 3
    assert {file.stat().st_mode & 0o777 for file in secret_files} == {0o600}


def test_stores_killed_while_writing_lose_nothing_that_was_acknowledged(folder: Path) -> None:
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        acknowledged = 0
        while acknowledged < 100:
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        writer.wait()
        acknowledged = int(([b"%d" % acknowledged, *writer.stdout.read().split()])[-1])
        writer.stdout.close()

        with (
            EmbeddedPostgres(folder / "postgres") as postgres,
            EmbeddedValkey(folder / "valkey") as valkey,
        ):
            with psycopg.connect(postgres.admin_url) as connection:
                row = connection.execute("SELECT count(*), max(n) FROM notes").fetchone()
                assert row is not None
                assert acknowledged <= row[1] == row[0]
                connection.execute("TRUNCATE notes")
            with redis.Redis.from_url(valkey.url) as client:
                assert int(client.get("n") or 0) >= acknowledged


def test_two_servers_never_share_an_append_only_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dev.stores.valkey._OLD_SERVER_SECONDS", 0.2)
    with EmbeddedValkey(folder), pytest.raises(CannotStart, match="another Valkey"):
        EmbeddedValkey(folder).start()


def test_a_server_that_cannot_start_is_quoted(folder: Path) -> None:
    with EmbeddedPostgres(folder, durable=False) as postgres:
        kill(postgres)
        version = postgres.data / "PG_VERSION"
        version.write_text("17\n")
        with pytest.raises(CannotStart, match="database files are incompatible with server"):
            postgres.start()
        version.write_text("18\n")
        (postgres.data / "global" / "pg_control").unlink()
        with pytest.raises(CannotStart, match="could not find the database system"):
            postgres.start()


def test_a_first_start_that_was_killed_is_made_good(folder: Path) -> None:
    with EmbeddedPostgres(folder, durable=False) as postgres:
        with psycopg.connect(postgres.admin_url, autocommit=True, dbname="postgres") as connection:
            connection.execute("DROP DATABASE record_service")
            connection.execute("DROP ROLE record_service")
        (postgres.data.with_name("data.new")).mkdir()
        kill(postgres)
        postgres.start()
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
