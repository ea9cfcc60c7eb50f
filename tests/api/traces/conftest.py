"""A front door whose spans are assembled when a test says so."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from app.core.traces.assembly import Assembler
from app.database import Database
from app.lib.metric_registry import Tally
from app.settings import Settings
from tests.api.traces.test_front_door import Assemble
from tests.support.callers.api import FreshTenant


@pytest.fixture
def assemble(
    database: Database, settings: Settings, admin_engine: Engine, tenant: FreshTenant
) -> Assemble:
    """Return a maker of records from all that is staged; `after` so many seconds of quiet."""
    assembler = Assembler(database, settings, Tally())

    def run(after: float = 3) -> None:
        quiet = {"tenant": tenant.id, "passed": timedelta(seconds=after)}
        with admin_engine.begin() as owner:
            owner.execute(
                text(
                    "UPDATE traces SET due_at = due_at - :passed, at = at - :passed"
                    " WHERE tenant_id = :tenant"
                ),
                quiet,
            )
        assert not assembler.run(until=float("inf"))

    return run
