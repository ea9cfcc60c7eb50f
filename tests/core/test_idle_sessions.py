"""Sessions that nothing came to end as abandoned: once, in batches, not while something comes."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core.records import statements
from app.database import Database
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import (
    make_agent,
    make_finding,
    make_record,
    make_session,
    record_of,
    refused,
    uuid_of,
)
from tests.support.database.plans import UNSORTED, explained, indexes

DAY = timedelta(days=1)
_LONG_AGO = """
UPDATE {} SET {} = {} - interval '25 hours' WHERE tenant_id = :tenant
"""


@pytest.fixture
def long_ago(admin_engine: Engine, tenant: FreshTenant) -> Any:
    """Return what moves everything of the tenant 25 hours back."""

    def move() -> None:
        with admin_engine.begin() as connection:
            for table in ("sessions", "records", "findings"):
                columns = ["created_at", *["active_at"] * (table == "sessions")]
                for column in columns:
                    query = _LONG_AGO.format(table, column, column)
                    connection.execute(text(query), {"tenant": tenant.id})

    return move


def complete_idle(database: Database, idle: timedelta = DAY) -> bool:
    with database.across_tenants() as session:
        return statements.complete_idle(session, idle)


def test_a_quiet_session_ends_abandoned_and_is_told_once(
    api: ApiOf, database: Database, long_ago: Any
) -> None:
    session = make_session(api(), metadata={"é": 1.0})
    make_record(api(), session["id"])
    complete_idle(database)
    assert api().get(f"/v1/sessions/{session['id']}").json["status"] == "open"
    long_ago()
    fresh = make_session(api())
    for _ in range(2):
        assert complete_idle(database) is False
    ended = api().get(f"/v1/sessions/{session['id']}").json
    assert (ended["status"], ended["outcome"]) == ("completed", "abandoned")
    assert api().get(f"/v1/sessions/{fresh['id']}").json["status"] == "open"
    (event,) = api().get("/v1/events?type=session.completed").json["data"]
    assert event["data"] == ended
    assert event["timestamp"] == ended["completed_at"]
    answer = api().post("/v1/records", record_of(session["id"]))
    refused(answer, 409, "session-completed")


@pytest.mark.parametrize("make", [make_record, make_finding])
def test_what_comes_to_a_session_puts_its_end_off(
    api: ApiOf, database: Database, long_ago: Any, admin_engine: Engine, make: Any
) -> None:
    session = make_session(api())
    long_ago()
    make(api(), session["id"])
    complete_idle(database)
    assert api().get(f"/v1/sessions/{session['id']}").json["status"] == "open"
    with admin_engine.connect() as connection:
        seen = connection.execute(
            text("SELECT active_at > created_at + interval '24 h' FROM sessions WHERE id = :id"),
            {"id": uuid_of(session["id"])},
        ).scalar_one()
    assert seen, "it is looked at again only when it may be due"
    long_ago()
    complete_idle(database)
    assert api().get(f"/v1/sessions/{session['id']}").json["outcome"] == "abandoned"


def test_many_end_in_batches_each_once_though_several_look_at_once(
    api: ApiOf, database: Database, long_ago: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "PIECE", 7)
    agent = make_agent(api())["id"]
    made = {make_session(api(), agent)["id"] for _ in range(30)}
    long_ago()

    def work(_: int) -> None:
        while complete_idle(database):
            pass

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    while complete_idle(database):
        pass
    told = api().get("/v1/events?type=session.completed&limit=200").json["data"]
    assert sorted(each["data"]["id"] for each in told) == sorted(made)
    assert {each["data"]["outcome"] for each in told} == {"abandoned"}


def test_a_record_that_is_being_stored_keeps_its_session_open(
    api: ApiOf, database: Database, tenant: FreshTenant, long_ago: Any
) -> None:
    session = make_session(api())
    long_ago()
    with database.transaction(tenant.id) as storing:
        # As whoever stores a record does.
        storing.execute(
            text("SELECT FROM sessions WHERE id = :id FOR SHARE"), {"id": uuid_of(session["id"])}
        )
        complete_idle(database)
    assert api().get(f"/v1/sessions/{session['id']}").json["status"] == "open"
    complete_idle(database)
    assert api().get(f"/v1/sessions/{session['id']}").json["status"] == "completed"


def test_abandoned_is_no_outcome_that_a_caller_gives_and_completing_may_be_repeated(
    api: ApiOf,
) -> None:
    session = make_session(api())
    path = f"/v1/sessions/{session['id']}/complete"
    refused(api().post(path, {"outcome": "abandoned"}), 422, "validation-failed")
    key = {"Idempotency-Key": "once"}
    first, again = (api().post(path, {"outcome": "failed"}, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code, again.json) == (200, 200, first.json)
    assert again.headers["Idempotent-Replayed"] == "true"


def test_of_ten_million_open_sessions_only_those_due_are_read(admin_engine: Engine) -> None:
    with admin_engine.connect() as connection:
        plan = explained(connection, statements._QUIET, (DAY, 500), UNSORTED)
    assert indexes(plan)["sessions_active_at"].startswith("(active_at <")
