"""Copies of an embedded PostgreSQL: of one that has ended, and a standby that follows one."""

import fcntl
import subprocess
from contextlib import closing
from pathlib import Path

import psycopg

from dev import env_file
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.store import Store
from tests.support.database.databases import make_template
from tests.support.faults import until

NAME = "standby"
_PASSWORDS = ("ADMIN_PASSWORD", "PASSWORD")


class Copy(EmbeddedPostgres):
    """A server with the data and the passwords that lie in a folder; its data is thrown away."""

    def __init__(self, folder: Path, origin: Path, *, durable: bool = False) -> None:
        super().__init__(folder, durable=durable)
        self._origin = origin

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = env_file.read(self._origin / "secrets")
        for name in _PASSWORDS:
            env_file.keep(self.folder / "secrets", **{name: lambda name=name: kept[name]})
        super()._prepare()

    def _initdb(self, data: Path, password: Path) -> None:
        subprocess.run(["cp", "-a", f"{self._origin}/data/.", data], check=True)


def migrated(folder: Path) -> Path:
    """Return a folder for `Copy`: a server of this release, whose own database is the template.

    The first process that asks makes it, and the others wait: to do so takes seconds.
    """
    made = folder / "migrated"
    with (folder / "migrated.lock").open("w") as lock, closing(lock):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with EmbeddedPostgres(folder / "origin", durable=False) as server:
                make_template(server)
                Store.stop(server)
                scratch = folder / "scratch"
                scratch.mkdir()
                subprocess.run(["cp", "-a", f"{server.data}/.", scratch / "data"], check=True)
                subprocess.run(["cp", "-a", server.folder / "secrets", scratch], check=True)
            scratch.rename(made)
    return made


class Standby(Copy):
    """A copy of a primary that runs, made when it starts first; it is promoted by `promote`."""

    def __init__(self, folder: Path, primary: EmbeddedPostgres) -> None:
        super().__init__(folder, primary.folder, durable=True)
        self._primary = primary

    def start(self) -> None:
        """Start it: its roles are the primary's."""
        Store.start(self)

    def promote(self) -> None:
        """Make it a primary."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def _initdb(self, data: Path, password: Path) -> None:
        source = f"{self._primary.admin_url}?application_name={NAME}"
        options = ["-D", str(data), "-R", "-X", "stream", "-c", "fast", "-d", source]
        with self.log.open("wb") as log:
            assert self._run("pg_basebackup", options, log).wait() == 0, self.log.read_text()


def follows(primary: EmbeddedPostgres) -> None:
    """Wait until the standby has all that the primary has written."""
    query = """
    SELECT EXISTS (SELECT FROM pg_stat_replication
                    WHERE state = 'streaming' AND replay_lsn >= pg_current_wal_lsn())
    """
    with psycopg.connect(primary.admin_url, autocommit=True) as connection:
        until(lambda: connection.execute(query).fetchone() == (True,))
