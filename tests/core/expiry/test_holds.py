"""What a legal hold covers stays, whatever its retention; released, it goes in the next run."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine

from app import ids
from app.core.jobs import leases
from app.core.records import expiry
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import make_key, make_record, make_session, refused
from tests.support.database.databases import waiting
from tests.support.faults import until
from tests.support.workers.expiring import Expirer, keep_for

SCOPES = ("record_id", "session_id", "agent_id", "range")


def hold(api: Api, **scope: Any) -> dict[str, Any]:
    return api.made("/v1/holds", {"reason": "Case 26-118", **scope})


def scope_on(record: dict[str, Any], scope: str) -> dict[str, Any]:
    if scope == "range":
        return {"since": "2000-01-01T00:00:00Z", "until": record["created_at"]}
    return {scope: record["id"] if scope == "record_id" else record[scope]}


def state(api: Api, record: dict[str, Any]) -> tuple[bool, bool, int]:
    """Return whether it is shown as held, and as expired, and the status of its content."""
    shown = api.get(f"/v1/records/{record['id']}").json
    content = api.get(f"/v1/records/{record['id']}/bundle").status_code
    listed = next(
        each for each in api.get("/v1/records").json["data"] if each["id"] == record["id"]
    )
    assert listed == shown
    return shown.get("held", False), shown["bundle"]["expired"], content


def actions(api: Api) -> list[str]:
    entries = api.get("/v1/audit?order=asc&limit=200").json["data"]
    return [each["action"] for each in entries if each["action"].startswith(("hold.", "bundles."))]


@pytest.mark.parametrize("scope", SCOPES)
def test_what_is_held_survives_and_goes_after_its_release(
    api: ApiOf, session: dict[str, Any], expirer: Expirer, scope: str
) -> None:
    record = make_record(api(), session["id"], content="medlar")
    other = make_record(api(), make_session(api())["id"])
    expirer.age(record, days=29)
    expirer.age(other, days=29)
    made = hold(api(), **scope_on(record, scope))
    keep_for(api(), 30)
    for each in (record, other):
        expirer.age(each, days=31)
    held_too = scope == "range"
    assert state(api(), record) == (True, False, 200)
    assert state(api(), other) == ((True, False, 200) if held_too else (False, True, 410))
    assert expirer.run() == (None if held_too else {"expired": 1})
    assert expirer.run() is None, "what is held makes no run"
    assert record["id"] in expirer.bundles()
    assert [each["id"] for each in api().get("/v1/records?q=medlar").json["data"]] == [record["id"]]
    assert api().delete(f"/v1/holds/{made['id']}").status_code == 204
    assert state(api(), record) == (False, True, 410)
    assert api().get("/v1/records?q=medlar").json["data"] == []
    assert expirer.run_released(made) == {"expired": 2 if held_too else 1}
    assert expirer.bundles() == set()
    begun = ["hold.create"] + ["bundles.expire"] * (not held_too)
    assert actions(api()) == [*begun, "hold.release", "bundles.expire"]


def test_what_comes_after_the_hold_is_held_too(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    hold(api(), agent_id=session["agent_id"])
    record = make_record(api(), session["id"])
    assert "held" not in record, "the way in does not look"
    keep_for(api(), 1)
    expirer.age(record, days=400)
    assert expirer.run() is None
    assert state(api(), record) == (True, False, 200)


def test_what_is_due_and_stored_is_kept_and_what_is_gone_stays_gone(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    gone, due = (make_record(api(), session["id"]) for _ in range(2))
    keep_for(api(), 30)
    expirer.age(gone, days=31)
    assert expirer.run() == {"expired": 1}
    expirer.age(due, days=31)
    keep_for(api(), 3650)
    assert state(api(), due) == (False, True, 410)
    made = hold(api(), session_id=session["id"])
    assert state(api(), due) == (True, False, 200)
    assert state(api(), gone) == (True, True, 410)
    assert expirer.run() == {"expired": 0}
    api().delete(f"/v1/holds/{made['id']}")
    assert state(api(), due) == (False, True, 410), "lengthening has brought nothing back"
    assert expirer.run_released(made) == {"expired": 1}


def test_two_holds_keep_until_both_are_released(
    api: ApiOf, session: dict[str, Any], expirer: Expirer
) -> None:
    record = make_record(api(), session["id"])
    first = hold(api(), record_id=record["id"])
    keep_for(api(), 1)
    expirer.age(record, days=9)
    second = hold(api(), session_id=session["id"])
    api().delete(f"/v1/holds/{first['id']}")
    assert expirer.run_released(first) == {"expired": 0}
    assert state(api(), record) == (True, False, 200)
    api().delete(f"/v1/holds/{second['id']}")
    assert expirer.run_released(second) == {"expired": 1}


def test_a_hold_is_lifted_by_an_administrator_once(api: ApiOf, session: dict[str, Any]) -> None:
    made = hold(api(), session_id=session["id"])
    path = f"/v1/holds/{made['id']}"
    for role in ("read", "write"):
        key = api(make_key(api(), role=role)["key"])
        refused(key.delete(path), 403, "insufficient-role")
    assert api().get(path).json == made
    assert made["status"] == "standing"
    for _ in range(2):
        assert api().delete(path).status_code == 204
    released = api().get(path).json
    assert released["status"] == "released"
    assert released["released_by"] == api().get("/v1/keys/self").json["id"]
    assert actions(api()) == ["hold.create", "hold.release"]
    assert api().get("/v1/holds?status=standing").json["data"] == []
    assert api().get(f"/v1/holds?session_id={session['id']}").json["data"] == [released]


def test_a_record_names_the_holds_that_cover_it(api: ApiOf, session: dict[str, Any]) -> None:
    record = make_record(api(), session["id"])
    other = make_record(api(), make_session(api())["id"])
    made = [hold(api(), **scope_on(record, scope)) for scope in SCOPES[:3]]
    made.append(hold(api(), since=record["created_at"], until="2999-01-01T00:00:00Z"))
    listed = api().get(f"/v1/holds?record_id={record['id']}").json["data"]
    assert listed == made[::-1]
    assert api().get(f"/v1/holds?record_id={other['id']}").json["data"] == made[-1:]


@pytest.mark.parametrize("first", ["the hold", "the expiry"])
def test_what_a_hold_covers_and_is_stored_when_it_is_answered_stays(
    api: ApiOf,
    session: dict[str, Any],
    expirer: Expirer,
    database: Database,
    tenant: FreshTenant,
    admin_engine: Engine,
    first: str,
) -> None:
    record = make_record(api(), session["id"])
    keep_for(api(), 1)
    expirer.age(record, days=2)
    job_id = expirer.enqueue_due()
    assert job_id is not None

    def place() -> dict[str, Any]:
        return hold(api(), session_id=session["id"])

    def step() -> None:
        with database.transaction(tenant.id) as opened:
            job = leases.claim(opened, tenant.id, job_id)
            assert job is not None
            expiry.step(opened, tenant.id, job)

    one, two = (place, step) if first == "the hold" else (step, place)
    with ThreadPoolExecutor(2) as pool:
        with database.transaction(tenant.id) as opened:
            expiry.take_turn(opened, tenant.id)
            asked: list[Any] = []
            for verb in (one, two):
                asked.append(pool.submit(verb))
                until(lambda: waiting(admin_engine, "pg_advisory_xact_lock") == len(asked))
        for each in asked:
            each.result()
    kept = {record["id"]} if first == "the hold" else set()
    assert expirer.bundles() == kept
    assert state(api(), record)[2] == (200 if kept else 410)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"reason": "r"}, "/record_id"),
        ({"reason": "r", "record_id": "rec_1"}, "/record_id"),
        ({"reason": "r", "since": "2026-01-01T00:00:00Z"}, "/until"),
        ({"reason": "r", "until": "2026-01-01T00:00:00Z"}, "/since"),
        (
            {"reason": "r", "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
            "/until",
        ),
        ({"record_id": f"rec_{'0' * 32}"}, "/reason"),
        ({"reason": "", "record_id": f"rec_{'0' * 32}"}, "/reason"),
        (
            {"reason": "r", "record_id": f"rec_{'0' * 32}", "session_id": f"ses_{'0' * 32}"},
            "/session_id",
        ),
        (
            {"reason": "r", "record_id": f"rec_{'0' * 32}", "since": "2026-01-01T00:00:00Z"},
            "/since",
        ),
    ],
)
def test_a_hold_has_a_reason_and_one_scope(api: ApiOf, body: dict[str, Any], pointer: str) -> None:
    errors = refused(api().post("/v1/holds", body), 422, "validation-failed")["errors"]
    assert pointer in [each["pointer"] for each in errors]
    assert api().get("/v1/holds").json["data"] == []


@pytest.mark.parametrize("name", ["record_id", "session_id", "agent_id"])
def test_a_hold_on_nothing_is_not_found(api: ApiOf, name: str) -> None:
    prefix = {"record_id": "rec", "session_id": "ses", "agent_id": "agt"}[name]
    nothing = ids.text(prefix, ids.new())
    refused(api().post("/v1/holds", {"reason": "r", name: nothing}), 404, "not-found")


def test_the_console_counts_no_held_record_as_one_to_expire(
    api: ApiOf, session: dict[str, Any], expirer: Expirer, index: Callable[[], int]
) -> None:
    records = [make_record(api(), session["id"]) for _ in range(3)]
    for record in records:
        expirer.age(record, days=9)
    assert index() == 3
    assert expirer.older(days=5) == 3
    hold(api(), record_id=records[0]["id"])
    assert expirer.older(days=5) == 2
