"""Records of several requests in one call: each has its own tenant, answer and fault."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core import idempotency, signing_keys
from app.core.callers import Caller, Pin, Role
from app.core.keys import keyring
from app.core.records.intake import Asked, Intake, OtherRefused, Ready, Stored
from app.core.records.signing import NewRecord, Signed
from app.database import Database
from app.errors import (
    IdempotencyKeyInUse,
    IdempotencyKeyReused,
    NotFound,
    SessionCompleted,
    StorageLimit,
    Unauthenticated,
)
from app.settings import Settings
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import make_agent, make_session, revoke, uuid_of
from tests.support.database.databases import waiting
from tests.support.faults import until


@dataclass(frozen=True)
class Author:
    """A caller, as the key's cache knows it, and its session."""

    caller: Caller
    session_id: UUID

    def asks(self, *titles: str, key: str = "", atomic: bool = False) -> Asked:
        """Return a request for records, with an Idempotency-Key if one is given."""
        new = [NewRecord(self.session_id, "k", each, {"title": each}) for each in titles]
        body = json.dumps(titles).encode()
        repeat = idempotency.Request.of(self.caller, key, "POST", "/", body) if key else None
        return Asked(self.caller, new, [repeat] * len(new), atomic)


@pytest.fixture
def intake(database: Database, settings: Settings) -> Intake:
    return Intake(database, settings)


def author(api: ApiOf, database: Database, key: str, session_id: str | None = None) -> Author:
    made = session_id or make_session(api(key))["id"]
    return Author(replace(keyring.authenticate(database, key, "t"), confirmed=False), uuid_of(made))


def stored(intake: Intake, database: Database, *asked: Asked) -> list[list[Any]]:
    """Store requests in one call; return of each record its title, or the kind of its error."""
    with database.statement() as tx:
        found = intake.store(tx, [intake.sign(each) for each in asked], waits=False)
    return [[shown(each) for each in results] for results in found]


def shown(result: Any) -> Any:
    return json.loads(result.body)["title"] if isinstance(result, Stored) else type(result)


def titles(api: ApiOf, key: str) -> list[str]:
    return [each["title"] for each in api(key).get("/v1/records").json["data"]][::-1]


def test_requests_of_several_tenants_are_stored_each_in_its_own(
    api: ApiOf,
    database: Database,
    intake: Intake,
    mint: Mint,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    admin_engine: Engine,
) -> None:
    ours, theirs = (author(api, database, each.root_key) for each in (tenant, other_tenant))
    doomed = mint("write")
    refused = author(api, database, doomed)
    ended = author(api, database, tenant.root_key)
    lost = replace(ours, session_id=theirs.session_id)
    asked = [
        ours.asks("a"),
        theirs.asks("b"),
        refused.asks("c"),
        ended.asks("d"),
        lost.asks("e"),
        ours.asks("f", "g"),
        theirs.asks("h"),
    ]
    ready = [intake.sign(each) for each in asked]
    revoke(api, doomed)
    done = f"/v1/sessions/{ids.text('ses', ended.session_id)}/complete"
    assert api().post(done, {"outcome": "succeeded"}).status_code == 200
    with database.statement() as tx:
        found = intake.store(tx, ready, waits=False)
    assert [[shown(each) for each in results] for results in found] == [
        *(["a"], ["b"], [Unauthenticated], [SessionCompleted], [NotFound], ["f", "g"], ["h"]),
    ]
    assert titles(api, tenant.root_key) == ["a", "f", "g"]
    assert titles(api, other_tenant.root_key) == ["b", "h"]
    for results, key in ((found[0], tenant.root_key), (found[6], other_tenant.root_key)):
        assert isinstance(results[0], Stored)
        made = json.loads(results[0].body)
        assert api(key).get(f"/v1/records/{made['id']}").json == made
        assert api(key).get(f"/v1/records/{made['id']}/bundle").status_code == 200
    leaves = "SELECT (SELECT count(*) FROM log_leaves), (SELECT count(*) FROM records)"
    with admin_engine.connect() as connection:
        each_leaf, each_record = connection.execute(text(leaves)).one()
    assert each_leaf == each_record


def test_row_level_security_binds_rows_that_name_another_tenant(
    api: ApiOf, database: Database, intake: Intake, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    """A signed record whose session, agent or key is another tenant's is not stored in either."""
    ours, theirs = (author(api, database, each.root_key) for each in (tenant, other_tenant))
    ready = intake.sign(theirs.asks("a"))
    (signed,) = ready.signed
    assert isinstance(signed, Signed)
    forged = replace(signed, tenant_id=tenant.id)
    with database.statement() as tx:
        found = intake.store(tx, [Ready(ours.asks("a"), [forged])], waits=False)
    assert [shown(each) for each in found[0]] == [NotFound]
    stranger = replace(ours, caller=replace(ours.caller, key_id=theirs.caller.key_id))
    assert stored(intake, database, stranger.asks("a")) == [[Unauthenticated]]
    assert titles(api, tenant.root_key) == titles(api, other_tenant.root_key) == []


def test_idempotency_keys_in_one_call_are_each_request_s_own(
    api: ApiOf, database: Database, intake: Intake, tenant: FreshTenant
) -> None:
    ours = author(api, database, tenant.root_key)
    assert stored(intake, database, ours.asks("a", key="1"), ours.asks("b")) == [["a"], ["b"]]
    again = [
        ours.asks("a", key="1"),
        ours.asks("z", key="1"),
        ours.asks("c", key="2"),
        ours.asks("c", key="2"),
        ours.asks("d"),
    ]
    kinds = [["a"], [IdempotencyKeyReused], ["c"], [IdempotencyKeyInUse], ["d"]]
    assert stored(intake, database, *again) == kinds
    assert titles(api, tenant.root_key) == ["a", "b", "c", "d"]


def test_a_key_that_another_transaction_stores_meanwhile_is_in_use(
    api: ApiOf, database: Database, intake: Intake, tenant: FreshTenant, admin_engine: Engine
) -> None:
    ours = author(api, database, tenant.root_key)
    assert stored(intake, database, ours.asks("before")) == [["before"]]
    with ThreadPoolExecutor(1) as pool:
        with database.transaction(tenant.id) as first:
            ready = intake.sign(ours.asks("a", key="1"), first)
            assert [shown(each) for each in intake.add_within(first, ready)] == ["a"]
            second = pool.submit(stored, intake, database, ours.asks("a", key="1"), ours.asks("b"))
            until(lambda: waiting(admin_engine, "add_records") == 1)
        assert second.result() == [[IdempotencyKeyInUse], ["b"]]
    assert titles(api, tenant.root_key) == ["before", "a", "b"]


def test_a_session_that_is_being_changed_holds_up_its_own_records_alone(
    api: ApiOf, database: Database, intake: Intake, tenant: FreshTenant, admin_engine: Engine
) -> None:
    ours, busy = (author(api, database, tenant.root_key) for _ in range(2))
    lock = text("SELECT FROM sessions WHERE id = :id FOR NO KEY UPDATE")
    with ThreadPoolExecutor(2) as pool:
        with database.transaction(tenant.id) as completing:
            completing.execute(lock, {"id": busy.session_id})
            waits = pool.submit(intake.add, busy.asks("late"))
            until(lambda: waiting(admin_engine, "add_records") == 1)
            both = pool.submit(intake.add, ours.asks("at once"))
            assert [shown(each) for each in both.result()] == ["at once"]
            assert not waits.done()
        assert [shown(each) for each in waits.result()] == ["late"]
    assert sorted(titles(api, tenant.root_key)) == ["at once", "late"]


def test_what_was_signed_by_what_is_no_longer_so_is_signed_anew(
    api: ApiOf, database: Database, intake: Intake, settings: Settings, tenant: FreshTenant
) -> None:
    agent = make_agent(api(), name="before")
    session = make_session(api(), agent["id"])
    ours = author(api, database, tenant.root_key, session["id"])
    assert [shown(each) for each in intake.add(ours.asks("a"))] == ["a"]
    changed = api().patch(f"/v1/agents/{agent['id']}", {"name": "after"})
    assert changed.status_code == 200
    assert [shown(each) for each in intake.add(ours.asks("b", "c"))] == ["b", "c"]
    with database.across_tenants() as tx:
        old = signing_keys.rotate(tx, settings.master_keys).retired
    assert [shown(each) for each in intake.add(ours.asks("d"))] == ["d"]
    made = api().get("/v1/records").json["data"][::-1]
    bundles = [api().get(f"/v1/records/{each['id']}/bundle").json for each in made]
    names = [each["record"]["agent"]["name"] for each in bundles]
    assert names == ["before", "after", "after", "after"]
    assert [each["key_id"] == old for each in bundles] == [True, True, True, False]


def test_what_is_signed_anew_twice_keeps_its_place(
    api: ApiOf,
    database: Database,
    intake: Intake,
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agents = [make_agent(api()) for _ in range(3)]
    opened = [make_session(api(), agent["id"])["id"] for agent in agents]
    new = [NewRecord(uuid_of(each), "k", f"t{place}", {}) for place, each in enumerate(opened)]
    caller = author(api, database, tenant.root_key, opened[0]).caller
    asked = Asked(caller, new, [None] * 3)
    assert [shown(each) for each in intake.add(asked)] == ["t0", "t1", "t2"]
    # Of the three agents the last two are renamed once, then the middle one again.
    renamed = [agents[1:], agents[1:2]]
    sign = intake.signer.sign

    def meanwhile(*arguments: Any) -> Any:
        signed = sign(*arguments)
        for each in renamed.pop(0) if renamed else ():
            assert api().patch(f"/v1/agents/{each['id']}", {"name": ids.new().hex}).json
        return signed

    monkeypatch.setattr(intake.signer, "sign", meanwhile)
    assert [shown(each) for each in intake.add(asked)] == ["t0", "t1", "t2"]
    assert sorted(titles(api, tenant.root_key)) == ["t0", "t0", "t1", "t1", "t2", "t2"]


def test_an_atomic_request_whose_key_is_taken_meanwhile_refuses_no_other(
    api: ApiOf,
    database: Database,
    intake: Intake,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    admin_engine: Engine,
) -> None:
    ours, theirs = (author(api, database, each.root_key) for each in (tenant, other_tenant))
    group = [intake.sign(each) for each in (ours.asks("a", key="1", atomic=True), theirs.asks("b"))]
    with ThreadPoolExecutor(1) as pool:
        with database.transaction(tenant.id) as first:
            ready = intake.sign(ours.asks("a", key="1"), first)
            assert [shown(each) for each in intake.add_within(first, ready)] == ["a"]
            second = pool.submit(intake._group._outcomes, group)
            until(lambda: waiting(admin_engine, "add_records") == 1)
        found = second.result()
    shown_each = [
        [shown(each) for each in each_of] for each_of in found if isinstance(each_of, list)
    ]
    assert shown_each == [["a"], ["b"]]
    assert titles(api, tenant.root_key) == ["a"]
    assert titles(api, other_tenant.root_key) == ["b"]


def test_a_pin_is_held_to_the_session_s_agent_and_principal(
    api: ApiOf, database: Database, intake: Intake, tenant: FreshTenant
) -> None:
    ours = author(api, database, tenant.root_key)
    caller = replace(ours.caller, role=Role.WRITE, pin=Pin(ids.new(), "somebody else"))
    asked = replace(ours, caller=caller).asks("a")
    assert [shown(each) for each in intake.add(asked)] == [NotFound]


def test_a_group_is_stored_up_to_the_tenant_s_limit(
    api: ApiOf, database: Database, settings: Settings, tenant: FreshTenant
) -> None:
    intake = Intake(database, replace(settings, tenant_records=3))
    ours = author(api, database, tenant.root_key)
    whole = ours.asks("c", "d", atomic=True)
    assert stored(intake, database, ours.asks("a"), ours.asks("b")) == [["a"], ["b"]]
    assert stored(intake, database, whole) == [[OtherRefused, StorageLimit]]
    assert stored(intake, database, ours.asks("e", "f")) == [["e", StorageLimit]]
    assert titles(api, tenant.root_key) == ["a", "b", "e"]


def test_records_that_arrive_at_once_are_each_answered_by_their_own(
    api: ApiOf, database: Database, intake: Intake, tenant: FreshTenant, other_tenant: FreshTenant
) -> None:
    authors = [author(api, database, each.root_key) for each in (tenant, other_tenant)]

    def add(number: int) -> Sequence[Any]:
        return [shown(each) for each in intake.add(authors[number % 2].asks(f"t{number}"))]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(add, range(200))) == [[f"t{number}"] for number in range(200)]
    for place, each in enumerate((tenant, other_tenant)):
        found = api(each.root_key).get("/v1/records?limit=200").json["data"]
        assert {row["title"] for row in found} == {f"t{n}" for n in range(place, 200, 2)}
