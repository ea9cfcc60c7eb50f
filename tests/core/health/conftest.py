"""A tenant alone in its database."""

import pytest

from app.database import Database
from app.settings import Settings
from tests.support.workers.outbox import Outbox


@pytest.fixture
def outbox(fresh_database: Database, settings: Settings) -> Outbox:
    """Return the outbox of a tenant without webhooks, alone in its database."""
    return Outbox.of_new_tenant(fresh_database, settings)
