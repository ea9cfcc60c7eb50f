"""`GET /v1/records?order=asc`: read along, miss nothing, however late it is committed."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core.records import records
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import (
    NOBODY,
    all_pages,
    make_record,
    make_session,
    pin_of,
    pointers,
    uuid_of,
)

COPIED = (
    "tenant_id, session_id, agent_id, principal, kind, title, labels_json, occurred_at,"
    " bundle_sha256, bundle_size, key_id, signature, created_at"
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def listed(api: Api, query: str = "") -> list[str]:
    answer = api.get(f"/v1/records?order=asc{query}")
    assert answer.status_code == 200, answer.json
    return [each["id"] for each in answer.json["data"]]


def test_records_come_oldest_first_and_go_on_after_the_last(api: ApiOf) -> None:
    session = make_session(api())["id"]
    assert listed(api()) == []
    made = [make_record(api(), session)["id"] for _ in range(5)]
    assert listed(api()) == made
    assert [each["id"] for each in all_pages(api(), "/v1/records?order=asc&limit=2")] == made
    assert listed(api(), f"&after={made[1]}&limit=2") == made[2:4]
    assert listed(api(), f"&after={made[-1]}") == []
    newest = make_record(api(), session)["id"]
    assert listed(api(), f"&after={made[-1]}") == [newest]


def test_a_record_committed_late_is_behind_no_reader(
    api: ApiOf, database: Database, tenant: FreshTenant, admin_engine: Engine
) -> None:
    """A transaction writes, and others that began later commit before it: the reader waits."""
    session = make_session(api())["id"]
    first = make_record(api(), session)["id"]
    with admin_engine.connect() as slow:
        copied = slow.execute(
            text(
                f"INSERT INTO records (id, {COPIED})"
                f" SELECT overlay(id::text placing '0' from 20)::uuid, {COPIED}"
                " FROM records WHERE id = :id RETURNING id"
            ),
            {"id": uuid_of(first)},
        ).scalar_one()
        later = [make_record(api(), session)["id"] for _ in range(2)]
        read = listed(api(), f"&after={first}")
        assert read == [], "what follows the open transaction is not shown yet"
        slow.commit()
    late = f"rec_{copied.hex}"
    assert listed(api(), f"&after={first}") == [late, *later]
    assert late < later[0]


def test_filters_hold_in_both_orders(api: ApiOf, mint: Mint) -> None:
    one, other = make_session(api()), make_session(api())
    at = "2026-01-31T12:00:0{}Z".format
    a = make_record(api(), one["id"], occurred_at=at(1), labels={"trace_id": TRACE})["id"]
    b = make_record(api(), one["id"], occurred_at=at(3), kind="b")["id"]
    c = make_record(api(), other["id"], occurred_at=at(2), labels={"trace_id": "none"})["id"]
    for query, expected in (
        (f"session_id={one['id']}", [a, b]),
        (f"agent_id={other['agent_id']}", [c]),
        ("kind=b", [b]),
        (f"trace_id={TRACE}", [a]),
        (f"trace_id={'1' * 32}", []),
        (f"occurred_since={at(2)}", [b, c]),
        (f"occurred_until={at(2)}", [a]),
        (f"occurred_since={at(2)}&occurred_until={at(3)}", [c]),
    ):
        assert listed(api(), f"&{query}") == expected, query
        newest = api().get(f"/v1/records?{query}").json["data"]
        assert [each["id"] for each in newest] == expected[::-1], query
    pinned = api(mint("read", pin_of(one)))
    assert listed(pinned) == [a, b]
    assert pointers(pinned.get(f"/v1/records?order=asc&after={c}")) == ["/after"]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("order=up", "/order"),
        (f"after=rec_{NOBODY}", "/after"),
        (f"order=desc&after=rec_{NOBODY}", "/after"),
        (f"order=asc&after=rec_{NOBODY}", "/after"),
        ("order=asc&after=1", "/after"),
        ("order=asc&q=x", "/q"),
        ("order=asc&label=a:b", "/label"),
        ("trace_id=1", "/trace_id"),
        (f"trace_id={'0' * 32}", "/trace_id"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(api: ApiOf, query: str, pointer: str) -> None:
    assert pointers(api().get(f"/v1/records?{query}")) == [pointer]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_content_comes_along_while_it_is_kept(api: ApiOf, admin_engine: Engine, order: str) -> None:
    session = make_session(api())["id"]
    decided = {"approved_by": "dana", "at": "2026-01-31T12:00:00.000000Z", "decision": "approved"}
    kept = make_record(api(), session, content={"a": [1.5]}, approvals=[decided])
    gone, damaged = (make_record(api(), session) for _ in range(2))
    with admin_engine.begin() as connection:
        gone_id = {"id": uuid_of(gone["id"])}
        connection.execute(text("DELETE FROM bundles WHERE record_id = :id"), gone_id)
        spoil = "UPDATE bundles SET bytes = overlay(bytes PLACING '\\x00' FROM 40)"
        damaged_id = {"id": uuid_of(damaged["id"])}
        connection.execute(text(f"{spoil} WHERE record_id = :id"), damaged_id)
    answer = api().get(f"/v1/records?order={order}&include=content")
    rows: dict[str, Any] = {each["id"]: each for each in answer.json["data"]}
    assert (
        rows[kept["id"]].items()
        >= {"content": {"a": [1.5]}, "steps": [], "approvals": [decided]}.items()
    )
    expired = rows[gone["id"]]
    assert (expired["content"], expired["bundle"]["expired"]) == (None, True)
    assert (rows[damaged["id"]]["content"], rows[damaged["id"]]["damaged"]) == (None, True)
    assert "damaged" not in expired
    bare, *_ = api().get(f"/v1/records?order={order}").json["data"]
    assert "content" not in bare


def test_a_page_with_content_ends_early_and_goes_on(api: ApiOf) -> None:
    session = make_session(api())["id"]
    made = [make_record(api(), session, content="x" * 3_000_000)["id"] for _ in range(5)]
    first = api().get("/v1/records?order=asc&include=content").json
    assert [each["id"] for each in first["data"]] == made[:3]
    whole = all_pages(api(), "/v1/records?order=asc&include=content")
    assert [each["id"] for each in whole] == made
    newest = all_pages(api(), "/v1/records?include=content")
    assert [each["id"] for each in newest] == made[::-1]


def test_records_of_another_database_come_before_those_of_this_one(
    api: ApiOf, database: Database, admin_engine: Engine
) -> None:
    """A dump brings numbers of transactions that this cluster has yet to give."""
    session = make_session(api())["id"]
    old = [make_record(api(), session)["id"] for _ in range(2)]
    with admin_engine.begin() as connection:
        connection.execute(
            text("UPDATE records SET written_by = written_by + 1000000000 WHERE session_id = :id"),
            {"id": uuid_of(session)},
        )
    assert listed(api()) == []
    with database.across_tenants() as tx:
        assert records.renumber_restored(tx) == 2
    new = make_record(api(), session)["id"]
    assert listed(api()) == [*old, new]
    assert listed(api(), f"&after={old[0]}") == [old[1], new]


def test_a_reader_beside_many_writers_gets_each_record_once(api: ApiOf) -> None:
    session = make_session(api())["id"]

    def write(_: int) -> list[str]:
        return [make_record(api(), session)["id"] for _ in range(15)]

    read: list[str] = []
    with ThreadPoolExecutor(5) as pool:
        written = [pool.submit(write, number) for number in range(4)]
        while not all(each.done() for each in written):
            read += listed(api(), f"&limit=7{f'&after={read[-1]}' if read else ''}")
    made = sorted(each for future in written for each in future.result())
    while more := listed(api(), f"&limit=7&after={read[-1]}" if read else ""):
        read += more
    assert sorted(read) == made
