"""Entries that were changed, added or deleted by SQL are found at their number."""

import pytest
import structlog

from app import ids
from app.core.verification.verifier import Asked
from tests.core.audit.chain.verifying import Chain
from tests.support.callers.api import FreshTenant

pytestmark = pytest.mark.usefixtures("forgotten")

_SET = "UPDATE audit_entries SET {} WHERE tenant_id = :tenant AND seq = 5"
_NO_HEAD = "DELETE FROM audit_heads WHERE tenant_id = :tenant"
_NO_ENTRIES = "DELETE FROM audit_entries WHERE tenant_id = :tenant"
_RENUMBER = "UPDATE audit_entries SET seq = {} WHERE tenant_id = :tenant AND seq {}"
_COPY = (
    "INSERT INTO audit_entries SELECT tenant_id, {}, body, hash, action, at"
    " FROM audit_entries WHERE tenant_id = :tenant AND seq = {}"
)
_EMPTY_HEAD = (
    "UPDATE audit_heads SET seq = 0, hash = decode(repeat('00', 32), 'hex')"
    " WHERE tenant_id = :tenant"
)


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        ([_SET.format("body = body || '\\x20'")], (5, "bad_hash")),
        ([_NO_ENTRIES + " AND seq = 1"], (1, "missing")),
        ([_NO_ENTRIES + " AND seq > 6"], (7, "missing")),
        ([_NO_ENTRIES], (1, "missing")),
        ([_NO_ENTRIES, _EMPTY_HEAD], (1, "missing")),
        ([_NO_ENTRIES, _NO_HEAD], (1, "missing")),
        ([_NO_HEAD], (1, "missing")),
        ([_RENUMBER.format(*each) for each in ((-4, "= 4"), (4, "= 6"), (6, "= -4"))],
         (4, "wrong_seq")),
        ([_RENUMBER.format("-seq - 1", "> 4"), _RENUMBER.format("-seq", "< 0"), _COPY.format(5, 4)],
         (5, "wrong_seq")),
        ([_COPY.format(10, 9)], (10, "beyond_end")),
        ([_SET.format("action = 'harmless.thing'")], (5, "misfiled")),
        ([_SET.format("at = at - interval '1 year'")], (5, "misfiled")),
        ([_SET.format("action = ''")], (5, "misfiled")),
        ([_SET.format("body = '', hash = sha256('')")], (5, "misfiled")),
    ],
)  # fmt: skip
def test_what_was_changed_by_sql_is_found_at_its_number(
    chain: Chain, statements: list[str], found: tuple[int, str]
) -> None:
    chain.attack(*statements)
    report = chain.broken()
    assert (report["seq"], report["reason"]) == found


def test_an_entry_edited_together_with_its_hash_is_found_at_the_link_or_the_head(
    chain: Chain,
) -> None:
    end = chain.head()
    chain.attack.rewrite(end.seq, details={})
    report = chain.broken()
    assert (report["seq"], report["expected"]) == (end.seq, end.hash)
    chain.attack.rewrite(1, target={"type": "test", "id": "another"})
    report = chain.broken()
    assert (report["seq"], report["reason"]) == (2, "bad_link")


def test_another_tenants_chain_in_the_place_of_this_one_is_found(
    chain: Chain, other_tenant: FreshTenant
) -> None:
    chain.attack(_NO_ENTRIES)
    chain.attack(
        "INSERT INTO audit_entries SELECT :tenant, seq, body, hash, action, at"
        " FROM audit_entries WHERE tenant_id = :other",
        "UPDATE audit_heads SET (seq, hash) = (SELECT seq, hash FROM audit_heads"
        " WHERE tenant_id = :other) WHERE tenant_id = :tenant",
        other=other_tenant.id,
    )
    report = chain.broken()
    assert (report["seq"], report["reason"]) == (1, "wrong_tenant")


def test_a_break_is_logged_as_critical_and_is_not_anothers(
    chain: Chain, other_tenant: FreshTenant
) -> None:
    chain.attack(_NO_ENTRIES + " AND seq = 5")
    with structlog.testing.capture_logs() as lines:
        report = chain.broken()
    tenant_id = ids.text("ten", chain.tenant_id)
    place = {"event": "audit_chain_broken", "log_level": "critical", "tenant_id": tenant_id}
    assert lines == [place | report]
    assert chain.verifier.verify(other_tenant.id, Asked())["status"] == "intact"
