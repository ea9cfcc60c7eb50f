"""Entries are appended in one order, as canonical bytes, and stay as they are."""

from hashlib import sha256
from threading import Barrier, Thread
from typing import Any

import pytest
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text
from sqlalchemy.exc import ProgrammingError

from app import ids
from app.clock import rfc3339
from app.core.audit import chain as audit_chain
from app.core.callers import SYSTEM, Actor
from app.database import Database, database_now
from app.errors import AuditChainBroken
from app.models import AuditEntry, AuditHead
from tests.core.audit.chain.verifying import Chain
from tests.support.callers.api import FreshTenant

pytestmark = pytest.mark.usefixtures("forgotten")


def test_a_new_tenants_chain_is_intact_from_its_first_entry(new_chain: Chain) -> None:
    report = new_chain.verify()
    assert report["status"] == "intact"
    assert report["entries"] == report["head"]["seq"] == report["unanchored_entries"] == 2


def test_eight_writers_at_once_leave_one_chain_without_gap_or_fork(new_chain: Chain) -> None:
    start = Barrier(8)
    numbers: list[int] = []

    def write(writer: int) -> None:
        start.wait()
        numbers.extend(new_chain.append(writer).seq for _ in range(15))

    threads = [Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(3, 3 + 8 * 15))
    assert new_chain.verify()["entries"] == 2 + 8 * 15
    with new_chain.database.transaction(new_chain.tenant_id) as session:
        times = select(AuditEntry.at).where(AuditEntry.tenant_id == new_chain.tenant_id)
        in_order = session.scalars(times.order_by(AuditEntry.seq)).all()
    assert in_order == sorted(in_order)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(max_size=9),
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
        "request_id": request_id,
        "seq": before.seq + 1,
        "target": {"type": "test", "id": target},
        "tenant_id": ids.text("ten", tenant.id),
    }
    assert entry.body == rfc8785.dumps(body)
    assert entry.hash.hex() == made.hash == sha256(entry.body).hexdigest()
    assert (entry.action, made.seq) == ("test.do", before.seq + 1)
    assert began <= entry.at <= ended


def test_only_who_sees_a_tenant_appends_to_its_chain(
    chain: Chain, other_tenant: FreshTenant
) -> None:
    before = chain.head()
    with chain.database.transaction(other_tenant.id) as session, pytest.raises(AuditChainBroken):
        audit_chain.append(session, chain.tenant_id, SYSTEM, "test.do", target=("test", "1"))
    assert chain.head() == before


def test_what_a_chain_refuses_is_refused_before_its_head_is_locked(
    new_chain: Chain,
) -> None:
    tenant_id = new_chain.tenant_id
    with new_chain.database.transaction(tenant_id) as session:
        with pytest.raises(ValueError, match="surrogate"):
            audit_chain.append(session, tenant_id, SYSTEM, "test.do", target=("test", "\ud800"))
        # It would wait for the lock, and be refused after two seconds.
        new_chain.append(3)


def test_a_transaction_that_fails_leaves_no_entry(chain: Chain) -> None:
    before = chain.head()

    def append_and_fail() -> None:
        with chain.database.transaction(chain.tenant_id) as session:
            audit_chain.append(session, chain.tenant_id, SYSTEM, "test.fail", target=("test", "1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        append_and_fail()
    assert chain.head() == before
    assert chain.append(10).seq == before.seq + 1


def test_the_services_own_role_cannot_change_or_delete_an_entry(chain: Chain) -> None:
    before = chain.head()
    for statement in ("UPDATE audit_entries SET body = ''", "DELETE FROM audit_entries"):
        with (
            pytest.raises(ProgrammingError),
            chain.database.transaction(chain.tenant_id) as session,
        ):
            session.execute(text(statement))
    assert chain.head() == before
