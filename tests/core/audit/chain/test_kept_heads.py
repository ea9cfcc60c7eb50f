"""A head that a caller kept finds a chain that was rewritten whole."""

import pytest
import structlog

from app.core.verification import stored_chain
from app.ledger.hash_chain import Head
from tests.core.audit.chain.verifying import Chain

pytestmark = pytest.mark.usefixtures("forgotten")


def test_a_chain_rewritten_whole_fails_only_against_a_head_that_was_kept(chain: Chain) -> None:
    kept = chain.head()
    chain.append(10)
    chain.attack.forge_tail(5, 10)
    assert chain.verify()["status"] == "intact"
    report = chain.broken(kept)
    assert (report["seq"], report["reason"]) == (kept.seq, "other_head")
    assert report["expected"] == kept.hash


def test_a_chain_cut_together_with_its_head_fails_only_against_a_head_that_was_kept(
    chain: Chain,
) -> None:
    kept = chain.head()
    chain.attack.cut(6)
    assert chain.verify()["entries"] == 6
    assert chain.broken(kept)["seq"] == 7


def test_a_kept_head_that_the_chain_leads_through_changes_nothing(chain: Chain) -> None:
    kept = chain.head()
    chain.append(10)
    report = chain.verify(kept)
    assert report == chain.verify() | {"verified_at": report["verified_at"]}


def test_verifying_sees_one_moment_while_others_append(chain: Chain) -> None:
    before = chain.head()
    with chain.database.transaction(chain.tenant_id, snapshot=True) as session:
        end = stored_chain.end(session, chain.tenant_id)
        chain.append(10)
        stored_chain.check(session, chain.tenant_id, end)
        assert end == before
    assert chain.verify()["entries"] == before.seq + 1


def test_a_break_found_by_a_kept_head_is_logged_with_that_head(chain: Chain) -> None:
    with structlog.testing.capture_logs() as lines:
        chain.broken(Head(4, "0" * 64))
    assert lines[0]["event"] == "supplied_head_contradicted"
    assert lines[0]["kept"] == {"seq": 4, "hash": "0" * 64}
