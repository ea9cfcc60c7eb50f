"""A tenant alone in its database, and what is read of it."""

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from app.core.health import gauges
from app.core.health.parts import Gauge
from app.database import Database
from app.settings import Settings
from tests.support.workers.outbox import Outbox

Read = Callable[[], dict[str, Gauge]]


@pytest.fixture
def outbox(fresh_database: Database, settings: Settings) -> Outbox:
    """Return the outbox of a tenant without webhooks, alone in its database."""
    return Outbox.of_new_tenant(fresh_database, settings)


def read(session: Session, settings: Settings) -> dict[str, Gauge]:
    """Return every gauge by its name."""
    return {each.name: each for part in gauges.OF_DATABASE for each in part(session, settings)}


@pytest.fixture
def seen(outbox: Outbox, settings: Settings) -> Read:
    """Return what reads every gauge of the outbox's database."""

    def look() -> dict[str, Gauge]:
        with outbox.database.across_tenants() as session:
            return read(session, settings)

    return look
