"""A head that a caller kept finds a chain that was rewritten whole."""

import pytest
import structlog

from app.core.callers import Caller
from app.core.verification.checks import stored_chain
from app.core.verification.time_budget import Deadline
from app.core.verification.verifier import Verifier
from app.database import Database
from app.ledger.hash_chain import Head
from tests.core.audit.chain.verifying import append, broken, head, verify
from tests.support.callers.api import FreshTenant
from tests.support.evidence.chains import Owner

pytestmark = pytest.mark.usefixtures("forgotten")


def test_a_chain_rewritten_whole_fails_only_against_a_head_that_was_kept(
    database: Database,
    verifier: Verifier,
    tenant: FreshTenant,
    reader: Caller,
    chain: Head,
    attack: Owner,
) -> None:
    kept = head(verifier, reader)
    append(database, tenant, 10)
    attack.forge_tail(5, 10)
    assert verify(verifier, reader)["status"] == "intact"
    report = broken(verifier, reader, kept)
    assert (report["seq"], report["reason"]) == (kept.seq, "other_head")
    assert report["expected"] == kept.hash


def test_a_chain_cut_together_with_its_head_fails_only_against_a_head_that_was_kept(
    verifier: Verifier, reader: Caller, chain: Head, attack: Owner
) -> None:
    attack.cut(6)
    assert verify(verifier, reader)["entries"] == 6
    assert broken(verifier, reader, chain)["seq"] == 7


def test_a_kept_head_that_the_chain_leads_through_changes_nothing(
    database: Database, verifier: Verifier, tenant: FreshTenant, reader: Caller, chain: Head
) -> None:
    append(database, tenant, 10)
    report = verify(verifier, reader, chain)
    assert report == verify(verifier, reader) | {"verified_at": report["verified_at"]}


def test_verifying_sees_one_moment_while_others_append(
    database: Database, verifier: Verifier, tenant: FreshTenant, reader: Caller, chain: Head
) -> None:
    with database.transaction(tenant.id, snapshot=True) as session:
        end = stored_chain.end(session, tenant.id)
        append(database, tenant, 10)
        stored_chain.check(session, tenant.id, end, Deadline(None))
        assert end == chain
    assert verify(verifier, reader)["entries"] == chain.seq + 1


def test_a_break_found_by_a_kept_head_is_logged_with_that_head(
    verifier: Verifier, reader: Caller, chain: Head
) -> None:
    with structlog.testing.capture_logs() as lines:
        broken(verifier, reader, Head(4, "0" * 64))
    assert lines[0]["event"] == "supplied_head_contradicted"
    assert lines[0]["kept"] == {"seq": 4, "hash": "0" * 64}
