"""Connections that the server ends at the worst moments: callers are told to come again."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event, text

from app.database import Database, Tx, cursor
from app.errors import Unavailable
from app.settings import Settings
from tests.support.callers.api import FreshTenant

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
