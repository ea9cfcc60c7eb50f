"""A service of one tenant, and the commands of its master keys."""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import create_engine

from app.core import tenants
from app.database import Database
from app.lib.crypto.sealing import MasterKeys
from app.manage import commands
from app.settings import Settings
from tests.jobs.resealing.sites import A, B, Site
from tests.support.callers.api import FreshTenant
from tests.support.servers.receivers import Receiver


@pytest.fixture
def site(fresh_settings: Settings) -> Iterator[Site]:
    """Return a service of one tenant, begun under the key A."""
    with Receiver() as receiver:
        owner = create_engine(fresh_settings.database_admin_url)
        database = Database(fresh_settings.database_url, application="tests")
        tenant = FreshTenant(*tenants.create(database, MasterKeys.parse(A), "rotated"))
        database.close()
        yield Site(fresh_settings, owner, tenant, receiver)
        owner.dispose()


@pytest.fixture
def command(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return what runs `master-key …` with some keys: its exit status, and all that was said."""

    def run(keys: tuple[str, ...], *arguments: str) -> tuple[int, str]:
        for name, value in site.environ(*keys).items():
            monkeypatch.setenv(name, value)
        done = commands.main(["master-key", *arguments])
        said = capsys.readouterr()
        assert not any(key in said.out + said.err for key in (A, B))
        return done, said.out + said.err

    return run
