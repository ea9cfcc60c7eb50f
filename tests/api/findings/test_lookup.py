"""`GET /v1/search`: anything by its id, and records and findings by words."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core import finding_search, word_index
from app.core.lookup import Type
from app.core.word_index import MOST_READ
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import (
    NOBODY,
    finding_of,
    make_finding,
    make_record,
    make_session,
    pin_of,
    pointers,
)
from tests.support.callers.matrix import World
from tests.support.callers.sending import make_webhook

# Of each kind: whether a key that is pinned to them finds it.
PINNED = {
    "record": True,
    "finding": True,
    "session": True,
    "agent": True,
    "key": True,
    "share_link": True,
    "rule": False,
    "webhook": False,
    "delivery": False,
    "event": False,
    "job": False,
    "export": False,
    "hold": False,
}


@pytest.fixture
def world(api: ApiOf) -> World:
    return World(api())


def hits(api: Api, typed: str) -> list[dict[str, Any]]:
    answer = api.get("/v1/search", query_string={"q": typed})
    assert answer.status_code == 200, answer.json
    found: list[dict[str, Any]] = answer.json["data"]
    return found


def test_every_kind_is_found_by_its_id_where_it_may_be_seen_and_at_its_address(
    world: World, api: ApiOf, mint: Callable[..., str], other_tenant: FreshTenant
) -> None:
    pinned = api(mint("read", world.pin))
    elsewhere = api(mint("read", world.pin | {"principal": "someone else"}))
    for name, known in world.ids().items():
        kind, hexadecimal = name.removesuffix("_id"), known[4:]
        spellings = [known, hexadecimal, str(UUID(hexadecimal)), f" {known.upper()} "]
        (hit,) = hits(api(), known)
        assert [hits(api(), each) for each in spellings] == [[hit]] * len(spellings)
        assert (hit["type"], hit["id"]) == (kind, known)
        assert hit["title"]
        there = api().get(hit["url"].removeprefix("https://records.test"))
        assert there.status_code == 200
        assert known in there.text
        assert hits(pinned, known) == ([hit] if PINNED[kind] else [])
        assert hits(elsewhere, hexadecimal) == ([hit] if kind == "agent" else [])
        assert hits(api(other_tenant.root_key), hexadecimal) == []
    assert hits(api(), f"rec_{world.finding['id'][4:]}") == [], "of another kind"
    assert {*PINNED, "digest"} == set(Type)


def test_of_a_deleted_webhook_the_history_is_found(api: ApiOf) -> None:
    webhook = make_webhook(api())
    assert api().delete(f"/v1/webhooks/{webhook['id']}").status_code == 204
    (hit,) = hits(api(), webhook["id"])
    assert (hit["type"], hit["id"]) == ("webhook", webhook["id"])
    assert api().get(hit["url"].removeprefix("https://records.test")).status_code == 200


def test_a_digest_leads_to_its_findings(
    api: ApiOf, tenant: FreshTenant, admin_engine: Engine
) -> None:
    digest = ids.new()
    add = "INSERT INTO digests (tenant_id, id, series) VALUES (:tenant, :id, :id)"
    with admin_engine.begin() as connection:
        connection.execute(text(add), {"tenant": tenant.id, "id": digest})
    (hit,) = hits(api(), ids.text("dig", digest))
    assert hit["url"].endswith(f"/v1/findings?digest_id={ids.text('dig', digest)}")


def test_words_find_records_and_findings_newest_first_and_an_unknown_id_what_mentions_it(
    api: ApiOf, mint: Callable[..., str]
) -> None:
    session, other = make_session(api()), make_session(api())
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    first = make_finding(api(), session["id"], title="a pear", detail=f"trace {trace}")
    record = make_record(api(), session["id"], title="A pear was bought")
    last = make_finding(api(), other["id"], title="another pear")
    expected = [last["id"], record["id"], first["id"]]
    assert [hit["id"] for hit in hits(api(), "PEAR")] == expected
    assert [hit["title"] for hit in hits(api(), trace)] == ["a pear"]
    assert len(api().get("/v1/search?q=pear&limit=2").json["data"]) == 2
    pinned = api(mint("read", pin_of(session)))
    assert [hit["id"] for hit in hits(pinned, "pear")] == expected[1:]
    assert hits(api(), NOBODY) == hits(api(), "plum") == []


def test_an_indexed_finding_is_found_while_many_newer_ones_are_not_indexed(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    session = make_session(api())
    rare = make_finding(api(), session["id"], title="a rare pear")["id"]
    with database.transaction(tenant.id) as opened:
        assert word_index.index_piece(opened, finding_search.SOURCE, tenant.id, ids.new()) == 1
    batch = {"findings": [finding_of(session["id"], title="an apple")] * 1000}
    for _ in range(MOST_READ // 1000):
        assert api().post("/v1/findings/batch", batch).status_code == 201
    assert [hit["id"] for hit in hits(api(), "pear")] == [rare]


@pytest.mark.parametrize(
    ("query", "pointer"), [("", "/q"), ("q=", "/q"), ("q=---", "/q"), ("q=a&limit=51", "/limit")]
)
def test_what_cannot_be_searched_for_is_refused(api: ApiOf, query: str, pointer: str) -> None:
    assert pointers(api().get(f"/v1/search?{query}")) == [pointer]
