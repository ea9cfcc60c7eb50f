"""A tenant's audit chain, in no log, and the database's owner who attacks it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from app import ids
from app.core.audit import chain as audit_chain
from app.core.callers import SYSTEM, Caller, Role
from app.core.verification.verifier import Asked, Verifier
from app.database import Database
from app.errors import AuditChainBroken
from app.ledger.hash_chain import Head
from tests.support.evidence.chains import Owner


@dataclass(frozen=True)
class Chain:
    """The chain, its verifier, and the database's owner, whose victim it is."""

    database: Database
    verifier: Verifier
    tenant_id: UUID
    attack: Owner

    @property
    def reader(self) -> Caller:
        """A caller of the tenant who may read."""
        return Caller(self.tenant_id, ids.new(), Role.READ, None, "a-request")

    def append(self, number: int = 0) -> Head:
        with self.database.transaction(self.tenant_id) as session:
            return audit_chain.append(
                session,
                self.tenant_id,
                SYSTEM,
                "test.do",
                target=("test", str(number)),
                details={"n": number},
            )

    def verify(self, kept: Head | None = None) -> dict[str, Any]:
        return self.verifier.verify(self.tenant_id, Asked(kept))

    def head(self) -> Head:
        return Head(**self.verify()["head"])

    def broken(self, kept: Head | None = None) -> dict[str, Any]:
        """Verify a chain that is broken; return the report of where and how."""
        with pytest.raises(AuditChainBroken) as caught:
            self.verify(kept)
        return caught.value.report
