"""The pool of connections: how many were in use at once, and the waits for one."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from app.database import Database
from app.lib.database.pool import PoolUse
from app.settings import Settings
from tests.support.faults import LONG_ENOUGH, until

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
    assert small.pool_use() == PoolUse(SIZE, 0)
    with ExitStack() as held:
        for _ in range(SIZE):
            held.enter_context(small.across_tenants())
    assert small.pool_use() == PoolUse(SIZE, SIZE)
    assert small.pool_use() == PoolUse(SIZE, 0)


def test_who_finds_a_connection_free_does_not_wait(small: Database, waits: list[float]) -> None:
    for _ in range(3 * SIZE):
        assert small.ask("SELECT 1", ()) == (1,)
    assert waits == []


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
        until(lambda: small._pool._pool.not_empty._waiters)  # type: ignore[attr-defined]
        assert waits == asked == []
    waiter.join(LONG_ENOUGH)
    assert asked == [(1,)]
    assert len(waits) == 1
    assert waits[0] > 0
