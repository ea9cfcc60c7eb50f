"""A standby of an embedded PostgreSQL: its base backup, which follows it while both run."""

from pathlib import Path

import psycopg

from dev import env_file
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.store import Store
from tests.support.faults import until

NAME = "standby"


class Standby(EmbeddedPostgres):
    """A copy of a primary that runs, made when it starts first; it is promoted by `promote`."""

    def __init__(self, folder: Path, primary: EmbeddedPostgres) -> None:
        super().__init__(folder)
        self._primary = primary

    def start(self) -> None:
        """Start it: its roles are the primary's."""
        Store.start(self)

    def promote(self) -> None:
        """Make it a primary."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = env_file.read(self._primary.folder / "secrets")
        for name in ("ADMIN_PASSWORD", "PASSWORD"):
            env_file.keep(self.folder / "secrets", **{name: lambda name=name: kept[name]})
        super()._prepare()

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
