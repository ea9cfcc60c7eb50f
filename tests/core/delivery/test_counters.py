"""The stack's counters: each thing counts once, and none goes back when a process dies."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, text

from app import counters
from app.database import Database
from app.lib.metric_registry import Counter, Tally
from app.models import NO_TENANT
from app.settings import Settings
from tests.support.callers.api import FreshTenant

A = Counter("a", "A.", labels=("which",))
B = Counter("b", "B.")


class Process:
    """What one process of the stack counts with."""

    def __init__(self, database: Database) -> None:
        self.tally = Tally()
        self.writer = counters.writer(database, self.tally)


@pytest.fixture
def process(fresh_database: Database) -> Callable[[], Process]:
    """Return a maker of processes that share a database."""
    return lambda: Process(fresh_database)


@pytest.fixture
def owner(fresh_database: Database, settings: Settings) -> Iterator[Engine]:
    """Return an engine of the fresh database's owner."""
    server = settings.database_admin_url.rpartition("/")[0]
    engine = create_engine(f"{server}/{fresh_database.engine.url.database}")
    yield engine
    engine.dispose()


def _figures(database: Database) -> dict[tuple[str, str], float]:
    with database.transaction(NO_TENANT) as session:
        return {(name, labels): value for name, labels, value in counters.read(session)}


def test_what_several_processes_count_is_added_up(
    fresh_database: Database, process: Callable[[], Process]
) -> None:
    one, other = process(), process()
    one.tally.add(A, 'wi"th,', count=2)
    other.tally.add(A, 'wi"th,', count=3)
    other.tally.add(B)
    for each in (one, other, one, other):
        each.writer.work()
    one.tally.add(B, count=4)
    one.writer.work()
    assert _figures(fresh_database) == {("a_total", '["wi\\"th,"]'): 5, ("b_total", "[]"): 5}


def test_what_could_not_be_written_is_written_later_and_once(
    fresh_database: Database, process: Callable[[], Process], owner: Engine
) -> None:
    patient = process()
    patient.tally.add(B, count=2)
    with owner.connect() as connection:
        connection.execute(text("LOCK TABLE counters IN ACCESS EXCLUSIVE MODE"))
        patient.writer.work()
    patient.tally.add(B)
    patient.writer.work()
    patient.writer.work()
    assert _figures(fresh_database) == {("b_total", "[]"): 3}


def test_writers_at_the_same_time_wait_and_do_not_deadlock(
    fresh_database: Database, process: Callable[[], Process]
) -> None:
    def busy(labels: list[str]) -> None:
        mine = process()
        for _ in range(20):
            for label in labels:
                mine.tally.add(A, label)
            mine.writer.work()

    labels = [str(number) for number in range(40)]
    threads = [
        threading.Thread(target=busy, args=(order,))
        for order in (labels, labels[::-1], labels, labels[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(_figures(fresh_database).values()) == {80}


def test_a_process_that_returns_writes_what_is_left(fresh_database: Database) -> None:
    """A web server's processes are told nothing of their end."""
    url = fresh_database.engine.url.render_as_string(hide_password=False)
    child = multiprocessing.get_context("spawn").Process(target=_count_and_return, args=(url,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert _figures(fresh_database) == {("b_total", "[]"): 3}


def _count_and_return(url: str) -> None:
    ending = Process(Database(url, application="tests"))
    ending.writer.begin()
    ending.tally.add(B, count=3)


def test_no_tenant_s_transaction_sees_a_figure(database: Database, tenant: FreshTenant) -> None:
    mine = Process(database)
    mine.tally.add(B)
    mine.writer.work()
    with database.transaction(tenant.id) as session:
        assert counters.read(session) == []
