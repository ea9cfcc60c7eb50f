"""A tenant's chain of nine entries, its verifier, and the database's owner."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core.callers import Caller, Role
from app.core.verification.checks.stamps import Trust
from app.core.verification.verifier import Verifier
from app.database import Database
from app.ledger.hash_chain import Head
from app.settings import Settings
from tests.core.audit.chain.verifying import append, head
from tests.support.callers.api import FreshTenant
from tests.support.evidence.chains import Owner


@pytest.fixture
def reader(tenant: FreshTenant) -> Caller:
    """Return a caller of the tenant who may read."""
    return Caller(tenant.id, ids.new(), Role.READ, None, "a-request")


@pytest.fixture
def chain(database: Database, verifier: Verifier, tenant: FreshTenant, reader: Caller) -> Head:
    """Append to the tenant's two entries until there are nine; return the head."""
    for number in range(3, 10):
        append(database, tenant, number)
    return head(verifier, reader)


_HEAD_AGAIN = """
INSERT INTO audit_heads (tenant_id, seq, hash)
SELECT :tenant, coalesce(max(seq), 0), :zero FROM audit_entries WHERE tenant_id = :tenant
ON CONFLICT (tenant_id) DO UPDATE SET seq = EXCLUDED.seq
"""


@pytest.fixture
def attack(admin_engine: Engine, tenant: FreshTenant) -> Iterator[Owner]:
    """Yield the database's owner, whose victim is the tenant.

    It has a head again afterwards: other tests in this database append to every tenant's chain.
    """
    yield Owner(admin_engine, tenant.id)
    with admin_engine.begin() as connection:
        connection.execute(text(_HEAD_AGAIN), {"tenant": tenant.id, "zero": bytes(32)})


@pytest.fixture
def verifier(database: Database, settings: Settings) -> Verifier:
    """Return what verifies the chain, which is in no log."""
    return Verifier(database, settings.master_keys, None, Trust())
