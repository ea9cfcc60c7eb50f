"""Reads of a real replica: what was written before is read; one that is unfit is passed over."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from app.core import tenants
from app.core.health.parts import Part, State
from app.database import Database
from app.errors import Unavailable
from app.lib.database.replica import Replica, preferred
from app.manage.doctor import stores
from app.manage.doctor.context import Context
from app.models import NO_TENANT
from app.settings import Settings
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.store import Store
from tests.support.callers.api import serving
from tests.support.callers.making import finding_of, make_session
from tests.support.database.copies import Copy, Standby
from tests.support.database.databases import allow_connections, sqlalchemy_url
from tests.support.faults import until
from tests.support.secrets import MASTER_KEYS

pytestmark = pytest.mark.toolbox


@dataclass
class Pair:
    """A primary and its standby."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres
    reads: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Open the primary with its replica."""
        replica = Replica(
            sqlalchemy_url(self.standby.url), 2, lambda where: self.reads.update([where])
        )
        opened = Database(sqlalchemy_url(self.primary.url), application="tests", replica=replica)
        try:
            yield opened
        finally:
            opened.close()

    def on_standby(self, query: str) -> object:
        """Ask the standby as its superuser."""
        url = self.standby.admin_url.replace(self.standby.url.rpartition("/")[2], "postgres")
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


@pytest.fixture(scope="module")
def pair(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with Copy(folder / "a", migrated) as primary:
        allow_connections(primary, allowed=True)
        with Standby(folder / "b", primary) as standby:
            yield Pair(primary, standby)


def is_on_standby(database: Database) -> bool:
    with database.transaction(NO_TENANT) as session:
        return bool(session.execute(text("SELECT pg_is_in_recovery()")).scalar_one())


def prefers_standby(database: Database) -> bool:
    with preferred():
        return is_on_standby(database)


def refuses_to_write(database: Database) -> bool:
    """Read in one context, then write in it: False where the primary was read."""
    with preferred():
        if not is_on_standby(database):
            return False
        with pytest.raises(Unavailable):
            write(database)
        return True


def write(database: Database) -> None:
    with database.transaction(NO_TENANT) as session:
        session.execute(text("UPDATE tenants SET name = name"))


def test_a_read_that_prefers_it_is_the_standby_s_and_sees_every_write_before(pair: Pair) -> None:
    with pair.database() as database:
        assert not is_on_standby(database)
        for number in range(20):
            made, _ = tenants.create(database, MASTER_KEYS, f"tenant {number}")
            with preferred() as reading, database.transaction(made) as session:
                found = session.execute(text("SELECT name FROM tenants")).scalars().all()
            assert found == [f"tenant {number}"]
            pair.reads["seen"] += bool(reading.from_replica)
        until(lambda: prefers_standby(database))
    assert pair.reads["replica"] > 0


def test_a_standby_that_is_behind_or_away_is_passed_over(pair: Pair) -> None:
    with pair.database() as database:
        pair.on_standby("SELECT pg_wal_replay_pause()")
        try:
            until(lambda: pair.on_standby("SELECT pg_get_wal_replay_pause_state()") == "paused")
            made, _ = tenants.create(database, MASTER_KEYS, "while it stands still")
            before = pair.reads["behind"]
            with preferred(), database.transaction(made) as session:
                assert session.execute(text("SELECT count(*) FROM tenants")).scalar_one() == 1
            assert pair.reads["behind"] == before + 1
        finally:
            pair.on_standby("SELECT pg_wal_replay_resume()")
        Store.stop(pair.standby)
        try:
            for _ in range(3):
                with preferred():
                    assert not is_on_standby(database)
        finally:
            Store.start(pair.standby)
    assert pair.reads["away"] == 3


def test_the_doctor_tells_a_replica_from_what_is_none(pair: Pair, settings: Settings) -> None:
    def told(url: str) -> Part:
        given = replace(settings, database_replica_url=sqlalchemy_url(url), redis_url=None)
        database = Database(sqlalchemy_url(pair.primary.url), application="tests")
        with Context(given, database, {}, patience=20.0) as context:
            (part,) = stores.replica(context)
        database.close()
        return part

    assert told(pair.standby.url).state is State.OK
    assert "replicates nothing" in told(pair.primary.url).text
    assert "does not answer" in told("postgresql://nobody@127.0.0.1:1/none").text


def test_a_view_that_writes_or_whose_standby_fails_runs_again_on_the_primary(
    pair: Pair, settings: Settings
) -> None:
    own = replace(
        settings,
        database_url=sqlalchemy_url(pair.primary.url),
        database_admin_url=sqlalchemy_url(pair.primary.admin_url),
        database_replica_url=sqlalchemy_url(pair.standby.url),
        redis_url=None,
    )
    with pair.database() as database:
        key = tenants.create(database, MASTER_KEYS, "of the API")[1]
        until(lambda: refuses_to_write(database))
        write(database)
    with serving(own) as api:
        session_id = make_session(api(key))["id"]
        made = [api(key).post("/v1/findings", finding_of(session_id)).json for _ in range(5)]
        listed = api(key).get("/v1/findings").json["data"]
        assert {each["id"] for each in listed} == {each["id"] for each in made}
        Store.stop(pair.standby)
        try:
            assert len(api(key).get("/v1/findings").json["data"]) == 5
        finally:
            Store.start(pair.standby)
