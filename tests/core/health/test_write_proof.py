"""A database that answers every read and refuses every write: each reason, brought about."""

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from app.core import tenants
from app.core.health import database_state
from app.core.health.parts import State
from app.core.master_keys import key_registry
from app.database import Database
from app.errors import Unavailable
from app.manage.doctor import command
from app.manage.doctor.context import Context
from app.settings import Settings
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.store import Store
from tests.support.callers.api import Api, serving
from tests.support.callers.making import finding_of, make_session
from tests.support.database.copies import Copy
from tests.support.database.databases import allow_connections, sqlalchemy_url
from tests.support.secrets import MASTER_KEYS

TOKEN = "t0ken"
SIZE = "150m"


class Alone:
    """A service on a PostgreSQL of its own, all of which this module may break."""

    def __init__(self, server: EmbeddedPostgres, settings: Settings) -> None:
        self.server = server
        url, admin = (sqlalchemy_url(each) for each in (server.url, server.admin_url))
        self.settings = replace(
            settings, database_url=url, database_admin_url=admin, metrics_token=TOKEN
        )

    @property
    def listed(self) -> Database:
        """A pool whose address names a host that is away first."""
        url = make_url(self.settings.database_url).set(
            host="",
            port=None,
            query={"host": "127.0.0.1,127.0.0.1", "port": f"1,{self.server.port}"},
        )
        return Database(url.render_as_string(hide_password=False), application="tests")

    def refusal(self) -> str | None:
        database = Database(self.settings.database_url, application="tests")
        try:
            found = database_state.writes(database, MASTER_KEYS)
            return None if found.is_ok else found.text
        finally:
            database.close()

    def doctor(self) -> list[str]:
        """Return what the doctor finds failed of the database, with what mends it."""
        database = Database(self.settings.database_url, pool_size=2, application="tests")
        try:
            checks = {name: command.CHECKS[name] for name in ("database", "database_writes")}
            with Context(self.settings, database, {}, patience=20.0) as context:
                found = command.run(context, checks, 300.0)
            return [f"{f.text} → {f.mend}" for f in found if f.state is State.FAILED]
        finally:
            database.close()

    def parts_up(self, api: Api) -> dict[str, float]:
        """Return which parts `/metrics` says are up."""
        told = api.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text
        found = re.findall(r'^record_service_up\{part="(\w+)"\} (.+)$', told, re.MULTILINE)
        return {part: float(value) for part, value in found}


@contextmanager
def _own_server(folder: Path, migrated: Path, settings: Settings) -> Iterator[Alone]:
    with Copy(folder, migrated) as server:
        allow_connections(server, allowed=True)
        yield Alone(server, settings)


@contextmanager
def _small_disk() -> Iterator[Path]:
    """Mount a small file system, which takes root, where the server's user can reach it."""
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("a file system can only be mounted by root")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    command = [mount, "-t", "tmpfs", "-o", f"size={SIZE},mode=0755", "tmpfs", str(folder)]
    if subprocess.run(command, check=False).returncode != 0:
        folder.rmdir()
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def _fill(file: Path) -> None:
    """Take what room the file's disk has left, to the last page."""
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            return


def _large(session_id: str) -> dict[str, Any]:
    """Return a finding that no compression makes small."""
    return finding_of(session_id, detail=secrets.token_hex(4000))


def test_a_database_that_takes_writes_is_up_and_its_rows_stay_as_they_were(
    database: Database,
) -> None:
    def registered() -> list[tuple[object, ...]]:
        with database.across_tenants() as session:
            return [tuple(row) for row in session.execute(text("SELECT * FROM master_keys"))]

    with database.across_tenants() as session:
        key_registry.announce(session, MASTER_KEYS)
    before = registered()
    assert database_state.writes(database, MASTER_KEYS).is_ok
    assert registered() == before != []


def test_a_full_disk_is_told_by_readyz_metrics_and_doctor_until_there_is_room(
    settings: Settings, migrated: Path
) -> None:
    with ExitStack() as held:
        disk = held.enter_context(_small_disk())
        alone = held.enter_context(_own_server(disk / "pg", migrated, settings))
        database = Database(alone.settings.database_url, application="tests")
        held.callback(database.close)
        key = tenants.create(database, MASTER_KEYS, "on a small disk")[1]
        api = held.enter_context(serving(alone.settings))
        session = make_session(api(key))["id"]
        assert api().readyz().json["parts"]["database_writes"] == "up"

        _fill(disk / "filler")
        answers = [api(key).post("/v1/findings", _large(session)) for _ in range(50)]
        assert answers[-1].status_code == 503
        assert "takes no writes" in answers[-1].json["detail"]
        # The row alone tells nothing: its page has room, and so it is written.
        with database.across_tenants() as written:
            touched = text("UPDATE master_keys SET in_front_at = in_front_at")
            assert written.execute(touched).rowcount == 1  # type: ignore[attr-defined]
        answer = api().readyz()
        assert (answer.status_code, answer.json["status"]) == (200, "ready")
        assert answer.json["degraded"][0] == "database_writes"
        assert answer.json["parts"]["database_writes"] == "refused: its disk is full (53100)"
        assert api(key).get("/v1/findings").status_code == 200
        up = alone.parts_up(api())
        assert (up["database"], up["database_writes"]) == (1, 0)
        (said,) = alone.doctor()
        assert "disk is full" in said
        assert "add disk space" in said

        (disk / "filler").unlink()
        assert api().readyz().json["parts"]["database_writes"] == "up"
        assert api(key).post("/v1/findings", finding_of(session)).status_code == 201
        assert alone.parts_up(api())["database_writes"] == 1
        assert alone.doctor() == []


def test_a_standby_and_a_database_set_read_only_are_told_apart(
    settings: Settings, migrated: Path, tmp_path: Path
) -> None:
    with _own_server(tmp_path / "pg", migrated, settings) as alone:
        assert alone.refusal() is None
        owner = create_engine(alone.settings.database_admin_url)
        with owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ALTER SYSTEM SET default_transaction_read_only = on"))
            connection.execute(text("SELECT pg_reload_conf()"))
        owner.dispose()
        assert alone.refusal() == "refused: default_transaction_read_only is on (25006)"
        (said,) = alone.doctor()
        assert "reset default_transaction_read_only" in said
        with serving(alone.settings) as api:
            answer = api().readyz()
            assert answer.status_code == 200
            assert "database_writes" in answer.json["degraded"]
        listed = alone.listed
        assert listed.ask("SELECT 1", ()) == (1,)

        Store.stop(alone.server)
        (alone.server.data / "postgresql.auto.conf").write_text("")
        (alone.server.data / "standby.signal").touch()
        Store.start(alone.server)
        with pytest.raises(Unavailable):
            listed.ask("SELECT 1", ())
        listed.close()
        (said,) = alone.doctor()
        assert "DATABASE_URL to the primary" in said
        with serving(alone.settings) as api:
            answer = api().get("/readyz")
            assert answer.status_code == 503
            assert answer.json["parts"]["database"] == "a standby answers, and no primary"


def test_a_connection_whose_session_only_reads_is_replaced_after_one_refusal(
    database: Database,
) -> None:
    """As behind a pooler that now leads to a standby."""
    with database.statement() as tx:
        old = tx.connection
        old.execute("SET default_transaction_read_only = on")
    with (
        pytest.raises(Unavailable, match="takes no writes"),
        database.across_tenants() as session,
    ):
        key_registry.touch(session, MASTER_KEYS)
    assert database_state.writes(database, MASTER_KEYS).is_ok
    assert old.closed
