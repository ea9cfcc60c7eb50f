"""A service with a database of its own, and processes with any master keys."""

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, text

from app.core.blobs import store
from app.core.master_keys import resealing
from app.core.master_keys.resealing import KeyReport, Resealed
from app.database import Database
from app.lib.crypto.sealing import MasterKeys
from app.settings import Settings
from jobs.process.runtime import Runtime
from tests.support.callers.api import Api, FreshTenant, serving
from tests.support.servers.receivers import Receiver
from tests.support.workers.worlds import opened_runtime

A, B = MasterKeys.generate(), MasterKeys.generate()
A_ID, B_ID = MasterKeys.parse(f"{A},{B}").ids
DROPPABLE = (
    "nothing in the database is under it: it can be dropped from MASTER_KEYS, or put in front if it"
    " is new"
)


@dataclasses.dataclass
class Site:
    """A service with a database of its own, of which any process may have any master keys."""

    settings: Settings
    owner: Engine
    tenant: FreshTenant
    receiver: Receiver

    def given(self, *keys: str) -> Settings:
        """Return the settings of a process with these keys."""
        return dataclasses.replace(self.settings, master_keys=MasterKeys.parse(",".join(keys)))

    @contextmanager
    def worker(self, *keys: str) -> Iterator[Runtime]:
        """Open what a worker with these keys holds."""
        with opened_runtime(self.given(*keys)) as opened:
            yield opened

    @contextmanager
    def api(self, *keys: str) -> Iterator[Api]:
        """Serve with these keys; yields the tenant's root caller."""
        with serving(self.given(*keys)) as api:
            yield api(self.tenant.root_key)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Open the database as the service's role."""
        opened = Database(self.settings.database_url, application="tests")
        try:
            yield opened
        finally:
            opened.close()

    def reseal(self, *keys: str) -> Resealed:
        """Seal everything anew under the first of these keys."""
        with self.database() as database:
            blobs = store.of(self.settings.blob_url)
            return resealing.reseal(database, MasterKeys.parse(",".join(keys)), blobs, force=True)

    def entries(self) -> int:
        """Return how many entries on it the tenant's audit chain has."""
        query = "SELECT count(*) FROM audit_entries WHERE action = 'master_key.rotate'"
        return int(self.scalar(query))

    def status(self, *keys: str) -> KeyReport:
        """Look through everything."""
        with self.database() as database:
            return resealing.report(database, MasterKeys.parse(",".join(keys)))

    def execute(self, statement: str, **values: Any) -> int:
        """Do something behind the service's back."""
        with self.owner.begin() as connection:
            connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
            return connection.execute(text(statement), values).rowcount

    def scalar(self, query: str) -> Any:
        """Look something up."""
        with self.owner.begin() as connection:
            connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
            return connection.scalar(text(query))

    def waits_for_a_row(self, query: str) -> int:
        """Count the statements like this that wait for another transaction's row."""
        with self.owner.connect() as connection:
            found = connection.scalar(
                text(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND wait_event_type = 'Lock' AND query LIKE :query"
                ),
                {"query": query},
            )
        return int(found or 0)

    def later(self) -> None:
        """Have every process that spoke so far spoken four minutes ago."""
        self.execute("UPDATE master_keys SET in_front_at = in_front_at - interval '4 minutes'")

    def environ(self, *keys: str) -> dict[str, str]:
        """Return the environment of a process with these keys."""
        return {
            **os.environ,
            "DATABASE_URL": self.settings.database_url,
            "MASTER_KEYS": ",".join(keys),
            "BASE_URL": self.settings.base_url,
            "BLOB_URL": self.settings.blob_url or "",
            "LOG_LEVEL": "ERROR",
        }
