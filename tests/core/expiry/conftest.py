"""A tenant's session, and its expiry."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from app.database import Database
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import make_session
from tests.support.workers.expiring import Expirer


@pytest.fixture
def expirer(database: Database, admin_engine: Engine, tenant: FreshTenant) -> Expirer:
    """Return the tenant's expiry, without clock and broker."""
    return Expirer(database, admin_engine, tenant)


@pytest.fixture
def session(api: Callable[..., Api]) -> dict[str, Any]:
    """Return a session of the tenant's."""
    return make_session(api())
