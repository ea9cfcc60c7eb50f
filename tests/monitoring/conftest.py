"""A service that tests scrape, made once for each module of them."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from app.settings import Settings
from tests.support.database.databases import made_database
from tests.support.faults import OwnValkey
from tests.support.workers.monitored import Monitored, monitored


@pytest.fixture(scope="module")
def running(
    settings: Settings,
    admin_engine: Engine,
    shared_valkey: OwnValkey,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Monitored]:
    shared_valkey.forget()
    folder = tmp_path_factory.mktemp("monitored")
    with (
        made_database(settings, admin_engine) as own,
        monitored(own, shared_valkey, folder) as service,
    ):
        yield service


@pytest.fixture
def service(running: Monitored) -> Monitored:
    """Return a service that is new and in order."""
    running.reset()
    return running
