"""A tenant alone in its database."""

import pytest

from app.database import Database
from app.settings import Settings
from tests.core.health.watched import Place


@pytest.fixture
def place(fresh_database: Database, settings: Settings) -> Place:
    """Return a tenant without webhooks, alone in its database."""
    return Place(fresh_database, settings)
