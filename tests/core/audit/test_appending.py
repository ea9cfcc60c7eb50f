"""Entries are appended in one order, as canonical bytes, and stay as they are."""

from hashlib import sha256
from typing import Any

import pytest
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from app import ids
from app.clock import rfc3339
from app.core import tenants
from app.core.audit import chain as audit_chain
from app.core.callers import SYSTEM, Actor
from app.database import Database, database_now
from app.errors import AuditChainBroken
from app.models import AuditEntry, AuditHead
from tests.support.callers.api import FreshTenant
from tests.support.evidence.chains import Place
from tests.support.faults import at_once
from tests.support.secrets import MASTER_KEYS


def test_eight_writers_at_once_leave_one_chain_without_gap_or_fork(place: Place) -> None:
    at_once(8, lambda _: place.append(15))
    assert place.verify()["entries"] == 12 + 8 * 15
    with place.world.database.transaction(place.tenant_id) as session:
        entries = session.execute(select(AuditEntry.seq, AuditEntry.at).order_by(AuditEntry.seq))
        numbers, times = zip(*entries, strict=True)
    assert list(numbers) == list(range(1, 13 + 8 * 15))
    assert sorted(times) == list(times)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    # An id is one of ours, and a copy of it is text of PostgreSQL's.
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9),
    st.dictionaries(st.text(max_size=5), st.text() | st.integers(-9, 9) | st.none(), max_size=3),
    st.none() | st.text(max_size=9),
)
def test_an_entry_is_stored_as_the_canonical_bytes_that_were_hashed(
    database: Database,
    tenant: FreshTenant,
    target: str,
    details: dict[str, Any],
    request_id: str | None,
) -> None:
    actor = Actor("key", "key_1", "admin")
    with database.transaction(tenant.id) as session:
        before = session.get_one(AuditHead, tenant.id)
        began = database_now(session)
        made = audit_chain.append(
            session,
            tenant.id,
            actor,
            "test.do",
            target=("test", target),
            details=details,
            request_id=request_id,
        )
        entry = session.get_one(AuditEntry, (tenant.id, made.seq))
        ended = database_now(session)
    moment = rfc3339(entry.at)
    body = {
        "action": "test.do",
        "actor": {"type": "key", "id": "key_1", "role": "admin"},
        "at": moment,
        "details": details,
        "prev_hash": before.hash.hex(),
        "origin": None,
        "outcome": "success",
        "request_id": request_id,
        "seq": before.seq + 1,
        "target": {"type": "test", "id": target},
        "tenant_id": ids.text("ten", tenant.id),
    }
    assert entry.body == rfc8785.dumps(body)
    assert entry.hash.hex() == made.hash == sha256(entry.body).hexdigest()
    assert (entry.action, made.seq) == ("test.do", before.seq + 1)
    assert began <= entry.at <= ended


def test_only_who_sees_a_tenant_appends_to_its_chain(place: Place) -> None:
    before = place.head()
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    with place.world.database.transaction(other) as session, pytest.raises(AuditChainBroken):
        audit_chain.append(session, place.tenant_id, SYSTEM, "test.do", target=("test", "1"))
    assert place.head() == before


def test_what_a_chain_refuses_is_refused_before_its_head_is_locked(place: Place) -> None:
    with place.world.database.transaction(place.tenant_id) as session:
        with pytest.raises(ValueError, match="surrogate"):
            audit_chain.append(
                session, place.tenant_id, SYSTEM, "test.do", target=("test", "\ud800")
            )
        # It would wait for the lock, and be refused after two seconds.
        place.append()


def test_a_transaction_that_fails_leaves_no_entry(place: Place) -> None:
    before = place.head()

    def append_and_fail() -> None:
        with place.world.database.transaction(place.tenant_id) as session:
            audit_chain.append(session, place.tenant_id, SYSTEM, "test.fail", target=("test", "1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        append_and_fail()
    assert place.head() == before
    place.append()
    assert place.head().seq == before.seq + 1
