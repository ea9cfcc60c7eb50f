"""A tenant whose service keeps bytes in an object store."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from app import ids
from app.core.log.sequencer import Sequencer
from app.settings import Settings
from jobs.process.runtime import Runtime
from tests.support.callers.api import Api, FreshTenant, serving
from tests.support.callers.making import make_record, make_session
from tests.support.evidence.packing import Packer
from tests.support.workers.expiring import Expirer
from tests.support.workers.worlds import opened_runtime


@dataclasses.dataclass
class World:
    """The service with `BLOB_URL`: its callers, a worker, and what the database has."""

    api: Callable[..., Api]
    runtime: Runtime
    tenant: FreshTenant
    owner: Engine
    log: Sequencer

    def record(self, **fields: Any) -> dict[str, Any]:
        """Make a record in a session of its own."""
        return make_record(self.api(), make_session(self.api())["id"], **fields)

    @property
    def packer(self) -> Packer:
        """Return who builds packs."""
        return Packer(self.api, self.tenant, self.runtime, self.log)

    @property
    def expirer(self) -> Expirer:
        """Return who expires bundles."""
        return Expirer(self.runtime.database, self.owner, self.tenant)

    def lies(self, record: dict[str, Any]) -> tuple[bool, bool]:
        """Say whether a record's bundle has bytes in the database, and whether it has a name."""
        query = "SELECT bytes IS NOT NULL, blob IS NOT NULL FROM bundles WHERE record_id = :id"
        ((here, named),) = self.rows(query, id=ids.parse("rec", record["id"]))
        return here, named

    def rows(self, query: str, **values: Any) -> list[Any]:
        """Look something up behind the service's back."""
        with self.owner.begin() as connection:
            connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
            return list(connection.execute(text(query), values))

    def bundle(self, record: dict[str, Any]) -> Any:
        """Ask for a record's exact bytes."""
        return self.api().get(f"/v1/records/{record['id']}/bundle")


@contextmanager
def world(
    settings: Settings, tenant: FreshTenant, owner: Engine, log: Sequencer, url: str | None
) -> Iterator[World]:
    """Serve a tenant with this object store."""
    given = dataclasses.replace(settings, blob_url=url)
    with serving(given) as api, opened_runtime(given) as runtime:
        yield World(lambda key=tenant.root_key: api(key), runtime, tenant, owner, log)


def taken_away(folder: Path) -> None:
    """Have the folder's disk gone."""
    folder.rename(folder.with_name("elsewhere"))
    folder.write_bytes(b"not a folder")


def brought_back(folder: Path) -> None:
    """Have it back."""
    folder.unlink()
    folder.with_name("elsewhere").rename(folder)
