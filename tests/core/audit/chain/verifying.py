"""Appends to a tenant's chain and verifies it."""

from typing import Any

import pytest

from app.core.audit import chain as audit_chain
from app.core.callers import SYSTEM, Caller
from app.core.verification.verifier import Asked, Verifier
from app.database import Database
from app.errors import AuditChainBroken
from app.ledger.hash_chain import Head
from tests.support.callers.api import FreshTenant


def append(database: Database, tenant: FreshTenant, number: int) -> Head:
    with database.transaction(tenant.id) as session:
        return audit_chain.append(
            session,
            tenant.id,
            SYSTEM,
            "test.do",
            target=("test", str(number)),
            details={"n": number},
        )


def verify(verifier: Verifier, reader: Caller, kept: Head | None = None) -> dict[str, Any]:
    return verifier.verify(reader.tenant_id, Asked(kept))


def head(verifier: Verifier, reader: Caller) -> Head:
    return Head(**verify(verifier, reader)["head"])


def broken(verifier: Verifier, reader: Caller, kept: Head | None = None) -> dict[str, Any]:
    with pytest.raises(AuditChainBroken) as caught:
        verify(verifier, reader, kept)
    return caught.value.report
