"""A tenant's chain in no log, of two entries and of nine."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from app.core.verification.stamps import Trust
from app.core.verification.verifier import Verifier
from app.database import Database
from app.settings import Settings
from tests.core.audit.chain.verifying import Chain
from tests.support.callers.api import FreshTenant
from tests.support.evidence.chains import Owner

_HEAD_AGAIN = """
INSERT INTO audit_heads (tenant_id, seq, hash)
SELECT :tenant, coalesce(max(seq), 0), :zero FROM audit_entries WHERE tenant_id = :tenant
ON CONFLICT (tenant_id) DO UPDATE SET seq = EXCLUDED.seq
"""


@pytest.fixture
def new_chain(
    database: Database, settings: Settings, tenant: FreshTenant, admin_engine: Engine
) -> Iterator[Chain]:
    """Return the chain of a new tenant, which has two entries.

    It has a head again afterwards: other tests in this database append to every tenant's chain.
    """
    verifier = Verifier(database, settings.master_keys, None, Trust())
    yield Chain(database, verifier, tenant.id, Owner(admin_engine, tenant.id))
    with admin_engine.begin() as connection:
        connection.execute(text(_HEAD_AGAIN), {"tenant": tenant.id, "zero": bytes(32)})


@pytest.fixture
def chain(new_chain: Chain) -> Chain:
    """Return that chain with nine entries."""
    for number in range(3, 10):
        new_chain.append(number)
    return new_chain
