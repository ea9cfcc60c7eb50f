"""What the doctor looks at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app import heartbeats
from app.settings import Settings
from tests.support.database.databases import empty
from tests.support.database.doctoring import Installation, new_installation
from tests.support.faults import OwnValkey


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
def own(base_settings: Settings, admin_engine: Engine) -> Iterator[Installation]:
    """Return an installation whose schema and role this test may change."""
    with new_installation(base_settings, admin_engine) as made:
        yield made


@pytest.fixture
def healthy(here: Installation, own_valkey: OwnValkey, tmp_path: Path) -> Installation:
    """Return an installation on one machine to which nothing is missing."""
    for role in heartbeats.ROLES:
        heartbeats.beat(own_valkey.client, role)
        own_valkey.client.persist(heartbeats.key(role))
    head = (tmp_path / "head").as_uri()
    here.change(redis_url=own_valkey.url, base_url="http://127.0.0.1:8000", log_head_url=head)
    return here
