"""Database connections: shared, and waited for while the server has none left."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from structlog.testing import capture_logs

from app.database import Database, carried, cursor
from app.lib.database.pool import PatientPool, none_left
from app.models import NO_TENANT
from app.settings import Settings
from tests.support.faults import until

ROLE = "limited_role"


@pytest.fixture(scope="module")
def limited_url(settings: Settings, admin_engine: Engine) -> Iterator[str]:
    """Return the database's address for a role that may have one connection."""
    with admin_engine.begin() as owner:
        owner.execute(
            text(
                f"CREATE ROLE {ROLE} LOGIN PASSWORD 'limited' NOSUPERUSER NOBYPASSRLS"
                " CONNECTION LIMIT 1"
            )
        )
    url = make_url(settings.database_url).set(username=ROLE, password="limited")
    yield url.render_as_string(hide_password=False)
    with admin_engine.begin() as owner:
        owner.execute(text(f"DROP ROLE {ROLE}"))


@pytest.fixture
def taken(limited_url: str, admin_engine: Engine) -> Iterator["psycopg.Connection[Any]"]:
    """Hold the only connection of that role."""
    # The server counts a connection until its process has ended, after the client knows.
    until(lambda: open_of(admin_engine) == 0)
    with psycopg.connect(limited_url.replace("+psycopg", "")) as connection:
        yield connection
    until(lambda: open_of(admin_engine) == 0)


def pooled(url: Any, patience: float, pool_size: int = 10) -> Engine:
    engine = create_engine(
        url, poolclass=PatientPool, pool_size=pool_size, max_overflow=0, pool_timeout=0.01
    )
    assert isinstance(engine.pool, PatientPool)
    engine.pool.patience = patience
    return engine


def open_of(engine: Engine) -> int:
    with engine.connect() as owner:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE usename = :role")
        return int(owner.execute(query, {"role": ROLE}).scalar_one())


def read_one(database: Database) -> int:
    with database.transaction(NO_TENANT) as session:
        row = cursor(session).execute("SELECT 1").fetchone()
    assert row is not None
    return int(row[0])


def test_a_refused_connection_is_waited_out(
    limited_url: str, taken: "psycopg.Connection[Any]"
) -> None:
    engine = pooled(limited_url, 1e6, pool_size=4)

    def read(_: int) -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT 1")).scalar_one())

    with capture_logs() as lines, ThreadPoolExecutor(4) as threads:
        reads = threads.map(read, range(40))
        until(lambda: lines)
        taken.close()
        assert list(reads) == [1] * 40
    engine.dispose()
    assert lines[0] == {
        "event": "connections_refused",
        "log_level": "warning",
        "open": lines[0]["open"],
        "wanted": 4,
    }


def test_a_refusal_is_told_when_the_time_to_wait_is_over(
    limited_url: str, taken: "psycopg.Connection[Any]"
) -> None:
    engine = pooled(limited_url, 0.1)
    with pytest.raises(OperationalError, match="too many connections for role") as refused:
        engine.connect()
    assert isinstance(refused.value.orig, psycopg.Error)
    assert none_left(refused.value.orig)
    assert not taken.closed


def test_another_failure_to_connect_is_not_waited_out(settings: Settings) -> None:
    url = make_url(settings.database_url).set(password="wrong")
    engine = pooled(url, 1e6)
    with pytest.raises(OperationalError, match="password authentication failed"):
        engine.connect()


def test_callers_take_turns_at_a_single_connection(settings: Settings) -> None:
    database = Database(settings.database_url, pool_size=1, application="tests")
    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(lambda _: read_one(database), range(200))) == 200
    assert database.pool_use().most_in_use == 1
    database.close()


def test_a_caller_waits_for_a_connection_no_longer_than_it_may(settings: Settings) -> None:
    engine = pooled(settings.database_url, 0.01, pool_size=1)
    with engine.connect(), pytest.raises(PoolTimeout, match="limit of size 1 overflow 0 reached"):
        engine.connect()
    engine.dispose()


def test_a_lost_connection_makes_room_for_another(settings: Settings) -> None:
    engine = pooled(settings.database_url, 1e6, pool_size=1)
    for _ in range(3):
        with engine.connect() as connection:
            connection.invalidate()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()


@pytest.mark.parametrize(("size", "is_kept"), [(1_000, True), (1_000_000, False)])
def test_a_connection_that_carried_a_large_value_is_closed(
    settings: Settings, size: int, is_kept: bool
) -> None:
    database = Database(settings.database_url, pool_size=1)
    with database.transaction(NO_TENANT) as session:
        before = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        carried(session, size)
    with database.raw_transaction(NO_TENANT) as tx:
        row = cursor(tx).execute("SELECT pg_backend_pid()").fetchone()
        carried(tx, size)
    assert row is not None
    assert (row[0] == before) is is_kept
    with database.transaction(NO_TENANT) as session:
        after = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    assert (row[0] == after) is is_kept
    database.close()
