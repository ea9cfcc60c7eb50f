"""What the doctor looks at."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Engine

from app.core import tenants
from app.database import Database
from app.settings import Settings
from tests.support.database.databases import empty
from tests.support.database.doctoring import Installation, keep_alive, new_installation
from tests.support.faults import OwnValkey
from tests.support.secrets import MASTER_KEYS


@pytest.fixture(scope="session")
def shared_installation(base_settings: Settings, admin_engine: Engine) -> Iterator[Installation]:
    """Make an installation for all tests that change neither its schema nor its role."""
    with new_installation(base_settings, admin_engine) as made:
        yield made


@pytest.fixture
def here(shared_installation: Installation) -> Installation:
    """Return an installation without rows and without Redis, for rows and settings."""
    empty(shared_installation.owner)
    shared = shared_installation
    return Installation(shared.settings, shared.owner, shared.role)


@pytest.fixture
def database_here(here: Installation) -> Iterator[Database]:
    """Return the installation's database."""
    opened = Database(here.settings.database_url, application="tests")
    yield opened
    opened.close()


@pytest.fixture
def tenant_id(database_here: Database) -> UUID:
    """Return a tenant of the installation."""
    return tenants.create(database_here, MASTER_KEYS, "looked at")[0]


@pytest.fixture
def own(base_settings: Settings, admin_engine: Engine) -> Iterator[Installation]:
    """Return an installation whose schema and role this test may change."""
    with new_installation(base_settings, admin_engine) as made:
        yield made


@pytest.fixture
def healthy(here: Installation, own_valkey: OwnValkey, tmp_path: Path) -> Installation:
    """Return an installation on one machine to which nothing is missing."""
    keep_alive(own_valkey)
    head = (tmp_path / "head").as_uri()
    here.change(redis_url=own_valkey.url, base_url="http://127.0.0.1:8000", log_head_url=head)
    return here
