"""Connections to PostgreSQL: refused, lost, pooled, measured."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from structlog.testing import capture_logs

from app.database import Database, Tx, carried, cursor
from app.errors import Unavailable
from app.lib.database.pool import PatientPool
from app.models import NO_TENANT
from app.settings import Settings
from tests.support.callers.api import FreshTenant
from tests.support.faults import LONG_ENOUGH, until

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
    with pytest.raises(OperationalError, match="too many connections for role"):
        engine.connect()
    assert not taken.closed


def test_another_failure_to_connect_is_not_waited_out(settings: Settings) -> None:
    url = make_url(settings.database_url).set(password="wrong")
    engine = pooled(url, 1e6)
    with pytest.raises(OperationalError, match="password authentication failed"):
        engine.connect()


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


Opened = Callable[[FreshTenant], AbstractContextManager[Tx]]


@pytest.fixture
def own_database(settings: Settings) -> Iterator[Database]:
    opened = Database(settings.database_url, application="lost connections")
    yield opened
    opened.close()


@pytest.fixture(params=["transaction", "raw_transaction"])
def opened(own_database: Database, request: pytest.FixtureRequest) -> Opened:
    """Return what opens a transaction, in each way that there is."""
    return lambda tenant: getattr(own_database, request.param)(tenant.id)


def terminate(engine: Engine, pid: int) -> None:
    """End a connection, and wait until the server has done so."""
    with engine.connect() as admin:
        admin.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})


def test_connections_that_end_as_soon_as_they_are_made_mean_that_the_database_is_away(
    own_database: Database, opened: Opened, tenant: FreshTenant, admin_engine: Engine
) -> None:
    def end(connection: psycopg.Connection[Any], _: object) -> None:
        terminate(admin_engine, connection.info.backend_pid)

    event.listen(own_database.engine, "connect", end)
    for _ in range(2):
        with pytest.raises(Unavailable), opened(tenant) as tx:
            cursor(tx).execute("SELECT 1").fetchone()
    event.remove(own_database.engine, "connect", end)
    with opened(tenant) as tx:
        assert cursor(tx).execute("SELECT 1").fetchone() == (1,)


def test_a_connection_lost_half_way_is_replaced_and_no_error_of_the_pool_s_is_logged(
    opened: Opened, tenant: FreshTenant, admin_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    def lose() -> None:
        with opened(tenant) as tx:
            row = cursor(tx).execute("SELECT pg_backend_pid()").fetchone()
            assert row is not None
            terminate(admin_engine, row[0])
            cursor(tx).execute("SELECT 1").fetchone()

    with pytest.raises(Unavailable):
        lose()
    assert caplog.records == []
    with opened(tenant) as tx:
        assert cursor(tx).execute("SELECT 1").fetchone() == (1,)


def test_a_server_that_takes_no_writes_means_that_the_database_is_away(
    own_database: Database, opened: Opened, tenant: FreshTenant
) -> None:
    def write() -> None:
        with opened(tenant) as tx:
            cursor(tx).execute("SET TRANSACTION READ ONLY")
            cursor(tx).execute("UPDATE lanes SET ring_at = NULL")

    def write_by_the_orm() -> None:
        with own_database.transaction(tenant.id) as session:
            session.execute(text("SET TRANSACTION READ ONLY"))
            session.execute(text("UPDATE lanes SET ring_at = NULL"))

    for writes in (write, write_by_the_orm):
        with pytest.raises(Unavailable):
            writes()
    with opened(tenant) as tx:
        assert cursor(tx).execute("SELECT 1").fetchone() == (1,)


def test_a_connection_that_comes_back_after_the_close_is_closed(
    own_database: Database, opened: Opened, tenant: FreshTenant
) -> None:
    with opened(tenant) as tx:
        connection = cursor(tx).connection
        own_database.close()
        assert not connection.closed
    assert connection.closed


SIZE = 2


@pytest.fixture
def waits() -> list[float]:
    """Return the seconds of each wait."""
    return []


@pytest.fixture
def small(settings: Settings, waits: list[float]) -> Iterator[Database]:
    opened = Database(settings.database_url, pool_size=SIZE, on_wait=waits.append)
    yield opened
    opened.close()


def test_the_most_in_use_at_once_is_told_once(small: Database) -> None:
    assert small.pool.most_in_use() == 0
    with ExitStack() as held:
        for _ in range(SIZE):
            held.enter_context(small.across_tenants())
    assert [small.pool.most_in_use() for _ in range(2)] == [SIZE, 0]


@pytest.mark.parametrize("anew", [False, True])
def test_a_wait_for_a_connection_is_measured(
    small: Database, waits: list[float], anew: bool
) -> None:
    if anew:
        small.engine.dispose()
    asked: list[object] = []
    with ExitStack() as held:
        for _ in range(SIZE):
            held.enter_context(small.across_tenants())
        waiter = threading.Thread(target=lambda: asked.append(small.ask("SELECT 1", ())))
        waiter.start()
        until(lambda: small.pool._pool.not_empty._waiters)  # type: ignore[attr-defined]
        assert waits == asked == []
    waiter.join(LONG_ENOUGH)
    assert asked == [(1,)]
    assert len(waits) == 1
    assert waits[0] > 0
