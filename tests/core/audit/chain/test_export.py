"""An export of the chain is read in parts, and stops where an entry is missing."""

import pytest

from app.core.verification import export
from app.errors import AuditChainBroken
from tests.core.audit.chain.verifying import Chain

pytestmark = pytest.mark.usefixtures("forgotten")


def test_an_export_is_read_in_parts_that_never_pass_its_end(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PART", 4)
    end = chain.head()
    parts = []
    for after in range(0, end.seq, 4):
        with chain.database.transaction(chain.tenant_id) as session:
            parts.append([e.seq for e in export.part(session, chain.reader, after, end)])
        chain.append()
    assert parts == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]


@pytest.mark.parametrize("seq", [1, 5, 9])
def test_an_export_stops_at_an_entry_that_is_missing(chain: Chain, seq: int) -> None:
    end = chain.head()
    chain.attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = :seq", seq=seq)
    with (
        chain.database.transaction(chain.tenant_id) as session,
        pytest.raises(AuditChainBroken) as caught,
    ):
        export.part(session, chain.reader, 0, end)
    assert caught.value.report["seq"] == seq
