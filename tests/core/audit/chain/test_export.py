"""An export of the chain is read in parts, and stops where an entry is missing."""

import pytest

from app.core.callers import Caller
from app.core.verification import export
from app.database import Database
from app.errors import AuditChainBroken
from app.ledger.hash_chain import Head
from tests.core.audit.chain.verifying import append
from tests.support.callers.api import FreshTenant
from tests.support.evidence.chains import Owner

pytestmark = pytest.mark.usefixtures("forgotten")


def test_an_export_is_read_in_parts_that_never_pass_its_end(
    database: Database,
    tenant: FreshTenant,
    reader: Caller,
    chain: Head,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, "PART", 4)
    parts = []
    for after in range(0, chain.seq, 4):
        with database.transaction(tenant.id) as session:
            parts.append([e.seq for e in export.part(session, reader, after, chain)])
        append(database, tenant, 0)
    assert parts == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]


@pytest.mark.parametrize("seq", [1, 5, 9])
def test_an_export_stops_at_an_entry_that_is_missing(
    database: Database, tenant: FreshTenant, reader: Caller, chain: Head, attack: Owner, seq: int
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = :seq", seq=seq)
    with database.transaction(tenant.id) as session, pytest.raises(AuditChainBroken) as caught:
        export.part(session, reader, 0, chain)
    assert caught.value.report["seq"] == seq
