"""The audit chain under attack: by many writers at once, and by somebody with SQL."""

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from threading import Barrier, Thread
from typing import Any

import pytest
import rfc8785
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import ProgrammingError

from app import ids
from app.clock import rfc3339
from app.core.audit import chain as audit_chain
from app.core.callers import SYSTEM, Actor, Caller, Role
from app.core.verification import export
from app.core.verification.checks import stored_chain
from app.core.verification.checks.stamps import Trust
from app.core.verification.time_budget import Deadline
from app.core.verification.verifier import Asked, Verifier
from app.database import Database, database_now
from app.errors import AuditChainBroken
from app.ledger.hash_chain import Head
from app.lib import canonical_json
from app.models import AuditEntry, AuditHead
from app.settings import Settings
from tests.support.callers.api import FreshTenant

pytestmark = pytest.mark.usefixtures("forgotten")

Attack = Callable[..., None]


@pytest.fixture
def reader(tenant: FreshTenant) -> Caller:
    return Caller(tenant.id, ids.new(), Role.READ, None, "a-request")


@pytest.fixture
def chain(database: Database, verifier: Verifier, tenant: FreshTenant, reader: Caller) -> Head:
    """Append to the tenant's two entries until there are nine; return the head."""
    for number in range(3, 10):
        append(database, tenant, number)
    return head(verifier, reader)


_HEAD_AGAIN = """
INSERT INTO audit_heads (tenant_id, seq, hash)
SELECT :tenant, coalesce(max(seq), 0), :zero FROM audit_entries WHERE tenant_id = :tenant
ON CONFLICT (tenant_id) DO UPDATE SET seq = EXCLUDED.seq
"""


@pytest.fixture
def attack(admin_engine: Engine, tenant: FreshTenant) -> Iterator[Attack]:
    """Yield a way to run SQL as the database's owner; `:tenant` is the victim.

    It has a head again afterwards: other tests in this database append to every tenant's chain.
    """

    def run(statement: str, **values: Any) -> None:
        with admin_engine.begin() as connection:
            done = connection.execute(text(statement), {"tenant": tenant.id} | values)
            assert done.rowcount > 0

    yield run
    with admin_engine.begin() as connection:
        connection.execute(text(_HEAD_AGAIN), {"tenant": tenant.id, "zero": bytes(32)})


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


@pytest.fixture
def verifier(database: Database, settings: Settings) -> Verifier:
    return Verifier(database, settings.master_keys, None, Trust())


def verify(verifier: Verifier, reader: Caller, kept: Head | None = None) -> dict[str, Any]:
    return verifier.verify(reader.tenant_id, Asked(kept))


def head(verifier: Verifier, reader: Caller) -> Head:
    return Head(**verify(verifier, reader)["head"])


def broken(verifier: Verifier, reader: Caller, kept: Head | None = None) -> dict[str, Any]:
    with pytest.raises(AuditChainBroken) as caught:
        verify(verifier, reader, kept)
    return caught.value.report


def rewrite(connection: Connection, tenant: FreshTenant, seq: int, **members: Any) -> bytes:
    """Change members of one entry's body and give it the hash that fits; return that hash."""
    where = {"tenant": tenant.id, "seq": seq}
    body = connection.scalar(
        text("SELECT body FROM audit_entries WHERE tenant_id = :tenant AND seq = :seq"), where
    )
    forged = canonical_json.dumps(json.loads(body) | members)
    digest = sha256(forged).digest()
    connection.execute(
        text(
            "UPDATE audit_entries SET body = :body, hash = :hash"
            " WHERE tenant_id = :tenant AND seq = :seq"
        ),
        where | {"body": forged, "hash": digest},
    )
    return digest


def test_a_new_tenants_chain_is_intact_from_its_first_entry(
    verifier: Verifier, reader: Caller
) -> None:
    report = verify(verifier, reader)
    assert report["status"] == "intact"
    assert report["entries"] == report["head"]["seq"] == report["unanchored_entries"] == 2


def test_eight_writers_at_once_leave_one_chain_without_gap_or_fork(
    database: Database, verifier: Verifier, tenant: FreshTenant, reader: Caller
) -> None:
    start = Barrier(8)
    numbers: list[int] = []

    def write(writer: int) -> None:
        start.wait()
        numbers.extend(append(database, tenant, writer).seq for _ in range(15))

    threads = [Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(3, 3 + 8 * 15))
    assert verify(verifier, reader)["entries"] == 2 + 8 * 15
    with database.transaction(tenant.id) as session:
        times = select(AuditEntry.at).where(AuditEntry.tenant_id == tenant.id)
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
    database: Database,
    verifier: Verifier,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    reader: Caller,
    chain: Head,
) -> None:
    with database.transaction(other_tenant.id) as session, pytest.raises(AuditChainBroken):
        audit_chain.append(session, tenant.id, SYSTEM, "test.do", target=("test", "1"))
    assert head(verifier, reader) == chain


def test_what_a_chain_refuses_is_refused_before_its_head_is_locked(
    database: Database, tenant: FreshTenant
) -> None:
    with database.transaction(tenant.id) as session:
        with pytest.raises(ValueError, match="surrogate"):
            audit_chain.append(session, tenant.id, SYSTEM, "test.do", target=("test", "\ud800"))
        # It would wait for the lock, and be refused after two seconds.
        append(database, tenant, 3)


def test_a_transaction_that_fails_leaves_no_entry(
    database: Database, verifier: Verifier, tenant: FreshTenant, reader: Caller, chain: Head
) -> None:
    def append_and_fail() -> None:
        with database.transaction(tenant.id) as session:
            audit_chain.append(session, tenant.id, SYSTEM, "test.fail", target=("test", "1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        append_and_fail()
    assert head(verifier, reader) == chain
    assert append(database, tenant, 10).seq == chain.seq + 1


def test_the_services_own_role_cannot_change_or_delete_an_entry(
    database: Database, verifier: Verifier, tenant: FreshTenant, reader: Caller, chain: Head
) -> None:
    for statement in ("UPDATE audit_entries SET body = ''", "DELETE FROM audit_entries"):
        with pytest.raises(ProgrammingError), database.transaction(tenant.id) as session:
            session.execute(text(statement))
    assert head(verifier, reader) == chain


@pytest.mark.parametrize("seq", [1, 5, 9])
def test_an_edited_body_is_found_at_its_number(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack, seq: int
) -> None:
    attack(
        "UPDATE audit_entries SET body = body || '\\x20' WHERE tenant_id = :tenant AND seq = :seq",
        seq=seq,
    )
    report = broken(verifier, reader)
    assert (report["seq"], report["reason"]) == (seq, "bad_hash")


@pytest.mark.parametrize(("seq", "found"), [(1, 2), (5, 6)])
def test_a_body_edited_together_with_its_hash_is_found_where_the_link_breaks(
    verifier: Verifier,
    tenant: FreshTenant,
    reader: Caller,
    chain: Head,
    admin_engine: Engine,
    seq: int,
    found: int,
) -> None:
    with admin_engine.begin() as connection:
        rewrite(connection, tenant, seq, target={"type": "test", "id": "another"})
    report = broken(verifier, reader)
    assert (report["seq"], report["reason"]) == (found, "bad_link")


def test_a_last_entry_edited_together_with_its_hash_is_not_the_head(
    verifier: Verifier, tenant: FreshTenant, reader: Caller, chain: Head, admin_engine: Engine
) -> None:
    with admin_engine.begin() as connection:
        rewrite(connection, tenant, chain.seq, details={})
    report = broken(verifier, reader)
    assert (report["seq"], report["expected"]) == (chain.seq, chain.hash)


@pytest.mark.parametrize("seq", [1, 5])
def test_a_deleted_entry_is_found_at_its_number(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack, seq: int
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = :seq", seq=seq)
    report = broken(verifier, reader)
    assert (report["seq"], report["reason"]) == (seq, "missing")


def test_a_chain_cut_at_its_end_does_not_reach_its_head(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq > 6")
    report = broken(verifier, reader)
    assert (report["seq"], report["reason"]) == (7, "missing")


def test_an_emptied_chain_is_broken_at_its_first_entry(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant")
    assert broken(verifier, reader)["seq"] == 1
    attack("UPDATE audit_heads SET seq = 0, hash = :zero WHERE tenant_id = :tenant", zero=bytes(32))
    assert broken(verifier, reader)["seq"] == 1
    attack("DELETE FROM audit_heads WHERE tenant_id = :tenant")
    assert broken(verifier, reader)["seq"] == 1


def test_a_head_that_was_taken_away_is_a_break(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack
) -> None:
    attack("DELETE FROM audit_heads WHERE tenant_id = :tenant")
    assert "audit_heads" in broken(verifier, reader)["expected"]


def test_two_entries_that_changed_places_are_found_at_the_first(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack
) -> None:
    for old, new in ((4, -4), (6, 4), (-4, 6)):
        attack(
            "UPDATE audit_entries SET seq = :new WHERE tenant_id = :tenant AND seq = :old",
            old=old,
            new=new,
        )
    assert broken(verifier, reader)["seq"] == 4


def test_an_entry_put_in_between_is_found_at_its_number(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack
) -> None:
    attack("UPDATE audit_entries SET seq = -seq - 1 WHERE tenant_id = :tenant AND seq > 4")
    attack("UPDATE audit_entries SET seq = -seq WHERE tenant_id = :tenant AND seq < 0")
    attack(
        "INSERT INTO audit_entries SELECT tenant_id, 5, body, hash, action, at"
        " FROM audit_entries WHERE tenant_id = :tenant AND seq = 4"
    )
    assert broken(verifier, reader)["seq"] == 5


def test_an_entry_added_behind_the_head_is_found(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack
) -> None:
    attack(
        "INSERT INTO audit_entries SELECT tenant_id, 10, body, hash, action, at"
        " FROM audit_entries WHERE tenant_id = :tenant AND seq = 9"
    )
    assert broken(verifier, reader)["seq"] == 10


def test_another_tenants_chain_in_the_place_of_this_one_is_found(
    verifier: Verifier,
    reader: Caller,
    chain: Head,
    attack: Attack,
    other_tenant: FreshTenant,
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant")
    attack(
        "INSERT INTO audit_entries SELECT :tenant, seq, body, hash, action, at"
        " FROM audit_entries WHERE tenant_id = :other",
        other=other_tenant.id,
    )
    attack(
        "UPDATE audit_heads SET (seq, hash) = (SELECT seq, hash FROM audit_heads"
        " WHERE tenant_id = :other) WHERE tenant_id = :tenant",
        other=other_tenant.id,
    )
    report = broken(verifier, reader)
    assert (report["seq"], report["reason"]) == (1, "wrong_tenant")


@pytest.mark.parametrize(
    "change", ["action = 'harmless.thing'", "at = at - interval '1 year'", "action = ''"]
)
def test_an_entry_filed_under_another_action_or_time_is_found(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack, change: str
) -> None:
    attack(f"UPDATE audit_entries SET {change} WHERE tenant_id = :tenant AND seq = 5")
    report = broken(verifier, reader)
    assert (report["seq"], report["reason"]) == (5, "misfiled")


@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"null", b"[]", b'{"seq":5}', b"{" * 100_000])
def test_a_body_that_is_no_entry_but_has_its_hash_is_found(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack, body: bytes
) -> None:
    attack(
        "UPDATE audit_entries SET body = :body, hash = sha256(:body)"
        " WHERE tenant_id = :tenant AND seq = 5",
        body=body,
    )
    assert broken(verifier, reader)["seq"] == 5


def test_a_chain_rewritten_whole_fails_only_against_a_head_that_was_kept(
    database: Database,
    verifier: Verifier,
    tenant: FreshTenant,
    reader: Caller,
    chain: Head,
    admin_engine: Engine,
) -> None:
    kept = head(verifier, reader)
    append(database, tenant, 10)
    with admin_engine.begin() as connection:
        digest = rewrite(connection, tenant, 5, details={"n": "forged"})
        for seq in range(6, 11):
            digest = rewrite(connection, tenant, seq, prev_hash=digest.hex())
        connection.execute(
            text("UPDATE audit_heads SET hash = :hash WHERE tenant_id = :tenant"),
            {"hash": digest, "tenant": tenant.id},
        )
    assert verify(verifier, reader)["status"] == "intact"
    report = broken(verifier, reader, kept)
    assert (report["seq"], report["reason"]) == (kept.seq, "other_head")
    assert report["expected"] == kept.hash


def test_a_chain_cut_together_with_its_head_fails_only_against_a_head_that_was_kept(
    verifier: Verifier, reader: Caller, chain: Head, attack: Attack
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq > 6")
    attack(
        "UPDATE audit_heads SET seq = 6, hash = (SELECT hash FROM audit_entries"
        " WHERE tenant_id = :tenant AND seq = 6) WHERE tenant_id = :tenant"
    )
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


def test_a_break_is_logged_as_critical_with_its_place(
    verifier: Verifier,
    reader: Caller,
    chain: Head,
    attack: Attack,
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = 5")
    with structlog.testing.capture_logs() as lines:
        report = broken(verifier, reader)
    tenant_id = ids.text("ten", reader.tenant_id)
    place = {"event": "audit_chain_broken", "log_level": "critical", "tenant_id": tenant_id}
    assert lines == [place | report]


def test_a_break_found_by_a_kept_head_is_logged_with_that_head(
    verifier: Verifier, reader: Caller, chain: Head
) -> None:
    with structlog.testing.capture_logs() as lines:
        broken(verifier, reader, Head(4, "0" * 64))
    assert lines[0]["event"] == "supplied_head_contradicted"
    assert lines[0]["kept"] == {"seq": 4, "hash": "0" * 64}


def test_one_tenants_break_is_not_anothers(
    verifier: Verifier,
    reader: Caller,
    chain: Head,
    attack: Attack,
    other_tenant: FreshTenant,
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = 1")
    stranger = Caller(other_tenant.id, ids.new(), Role.READ, None, "a-request")
    assert verify(verifier, stranger)["status"] == "intact"


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
    database: Database, tenant: FreshTenant, reader: Caller, chain: Head, attack: Attack, seq: int
) -> None:
    attack("DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = :seq", seq=seq)
    with database.transaction(tenant.id) as session, pytest.raises(AuditChainBroken) as caught:
        export.part(session, reader, 0, chain)
    assert caught.value.report["seq"] == seq
