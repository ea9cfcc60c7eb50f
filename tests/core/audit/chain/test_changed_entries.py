"""Entries that were changed, added or deleted by SQL are found at their number."""

import pytest
import structlog

from app import ids
from app.core.verification.verifier import Asked
from tests.core.audit.chain.verifying import Chain
from tests.support.callers.api import FreshTenant

pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.mark.parametrize("seq", [1, 5, 9])
def test_an_edited_body_is_found_at_its_number(chain: Chain, seq: int) -> None:
    chain.attack(
        "UPDATE audit_entries SET body = body || '\\x20' WHERE tenant_id = :tenant AND seq = :seq",
        seq=seq,
    )
    report = chain.broken()
    assert (report["seq"], report["reason"]) == (seq, "bad_hash")


@pytest.mark.parametrize(("seq", "found"), [(1, 2), (5, 6)])
def test_a_body_edited_together_with_its_hash_is_found_where_the_link_breaks(
    chain: Chain, seq: int, found: int
) -> None:
    chain.attack.rewrite(seq, target={"type": "test", "id": "another"})
    report = chain.broken()
    assert (report["seq"], report["reason"]) == (found, "bad_link")


def test_a_last_entry_edited_together_with_its_hash_is_not_the_head(chain: Chain) -> None:
    end = chain.head()
    chain.attack.rewrite(end.seq, details={})
    report = chain.broken()
    assert (report["seq"], report["expected"]) == (end.seq, end.hash)


@pytest.mark.parametrize("seq", [1, 5])
def test_a_deleted_entry_is_found_at_its_number(chain: Chain, seq: int) -> None:
    chain.attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = :seq", seq=seq)
    report = chain.broken()
    assert (report["seq"], report["reason"]) == (seq, "missing")


def test_a_chain_cut_at_its_end_does_not_reach_its_head(chain: Chain) -> None:
    chain.attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq > 6")
    report = chain.broken()
    assert (report["seq"], report["reason"]) == (7, "missing")


def test_an_emptied_chain_is_broken_at_its_first_entry(chain: Chain) -> None:
    chain.attack("DELETE FROM audit_entries WHERE tenant_id = :tenant")
    assert chain.broken()["seq"] == 1
    chain.attack(
        "UPDATE audit_heads SET seq = 0, hash = :zero WHERE tenant_id = :tenant", zero=bytes(32)
    )
    assert chain.broken()["seq"] == 1
    chain.attack("DELETE FROM audit_heads WHERE tenant_id = :tenant")
    assert chain.broken()["seq"] == 1


def test_a_head_that_was_taken_away_is_a_break(chain: Chain) -> None:
    chain.attack("DELETE FROM audit_heads WHERE tenant_id = :tenant")
    assert "audit_heads" in chain.broken()["expected"]


def test_two_entries_that_changed_places_are_found_at_the_first(chain: Chain) -> None:
    for old, new in ((4, -4), (6, 4), (-4, 6)):
        chain.attack(
            "UPDATE audit_entries SET seq = :new WHERE tenant_id = :tenant AND seq = :old",
            old=old,
            new=new,
        )
    assert chain.broken()["seq"] == 4


def test_an_entry_put_in_between_is_found_at_its_number(chain: Chain) -> None:
    chain.attack("UPDATE audit_entries SET seq = -seq - 1 WHERE tenant_id = :tenant AND seq > 4")
    chain.attack("UPDATE audit_entries SET seq = -seq WHERE tenant_id = :tenant AND seq < 0")
    chain.attack(
        "INSERT INTO audit_entries SELECT tenant_id, 5, body, hash, action, at"
        " FROM audit_entries WHERE tenant_id = :tenant AND seq = 4"
    )
    assert chain.broken()["seq"] == 5


def test_an_entry_added_behind_the_head_is_found(chain: Chain) -> None:
    chain.attack(
        "INSERT INTO audit_entries SELECT tenant_id, 10, body, hash, action, at"
        " FROM audit_entries WHERE tenant_id = :tenant AND seq = 9"
    )
    assert chain.broken()["seq"] == 10


def test_another_tenants_chain_in_the_place_of_this_one_is_found(
    chain: Chain, other_tenant: FreshTenant
) -> None:
    chain.attack("DELETE FROM audit_entries WHERE tenant_id = :tenant")
    chain.attack(
        "INSERT INTO audit_entries SELECT :tenant, seq, body, hash, action, at"
        " FROM audit_entries WHERE tenant_id = :other",
        other=other_tenant.id,
    )
    chain.attack(
        "UPDATE audit_heads SET (seq, hash) = (SELECT seq, hash FROM audit_heads"
        " WHERE tenant_id = :other) WHERE tenant_id = :tenant",
        other=other_tenant.id,
    )
    report = chain.broken()
    assert (report["seq"], report["reason"]) == (1, "wrong_tenant")


@pytest.mark.parametrize(
    "change", ["action = 'harmless.thing'", "at = at - interval '1 year'", "action = ''"]
)
def test_an_entry_filed_under_another_action_or_time_is_found(chain: Chain, change: str) -> None:
    chain.attack(f"UPDATE audit_entries SET {change} WHERE tenant_id = :tenant AND seq = 5")
    report = chain.broken()
    assert (report["seq"], report["reason"]) == (5, "misfiled")


@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"null", b"[]", b'{"seq":5}', b"{" * 100_000])
def test_a_body_that_is_no_entry_but_has_its_hash_is_found(chain: Chain, body: bytes) -> None:
    chain.attack(
        "UPDATE audit_entries SET body = :body, hash = sha256(:body)"
        " WHERE tenant_id = :tenant AND seq = 5",
        body=body,
    )
    assert chain.broken()["seq"] == 5


def test_a_break_is_logged_as_critical_with_its_place(chain: Chain) -> None:
    chain.attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = 5")
    with structlog.testing.capture_logs() as lines:
        report = chain.broken()
    tenant_id = ids.text("ten", chain.tenant_id)
    place = {"event": "audit_chain_broken", "log_level": "critical", "tenant_id": tenant_id}
    assert lines == [place | report]


def test_one_tenants_break_is_not_anothers(chain: Chain, other_tenant: FreshTenant) -> None:
    chain.attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = 1")
    assert chain.verifier.verify(other_tenant.id, Asked())["status"] == "intact"
