"""A tenant's session, its expiry, and the index of its words."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from app.database import Database
from app.settings import Settings
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import make_session
from tests.support.database.storing import index_words
from tests.support.workers.expiring import Expirer


@pytest.fixture
def expirer(database: Database, admin_engine: Engine, tenant: FreshTenant) -> Expirer:
    """Return the tenant's expiry, without clock and broker."""
    return Expirer(database, admin_engine, tenant)


@pytest.fixture
def index(database: Database, settings: Settings, tenant: FreshTenant) -> Callable[[], int]:
    """Return what indexes the tenant's records, and returns how many there were."""
    return lambda: index_words(database, settings, tenant.id)[1]


@pytest.fixture
def session(api: Callable[..., Api]) -> dict[str, Any]:
    """Return a session of the tenant's."""
    return make_session(api())
