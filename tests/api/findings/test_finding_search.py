"""Findings by words: found at once, indexed later, and alike in both."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, text

from app import clock, ids
from app.core import feeds, word_index
from app.core.finding_search import SOURCE
from app.core.word_index import MOST_READ
from app.database import Database
from app.settings import Settings
from jobs.actors import ticks
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import (
    all_pages,
    finding_of,
    make_finding,
    make_record,
    make_session,
    pin_of,
    pointers,
)
from tests.support.workers.worlds import opened_runtime

MATCHING = [
    ("refund", ["b", "a"]),
    ("REFUND limit", ["a"]),
    ("pii.in-log", ["b"]),
    ("refund.above-limit", ["a"]),
    ('"second person"', ["a"]),
    ('"person second"', []),
    ('"went out without a second person"', ["a"]),
    ('"a refund pii"', []),
    ('"one two three"', ["c"]),
    ("one/two/three", ["c"]),
    ("straße", ["b"]),
    ("refund strasse", ["b"]),
    ("refunds", []),
    ("refund&severity=high", ["b"]),
    ("refund&rule=refund.above-limit", ["a"]),
    ("refund&since=2999-01-01T00:00:00Z", []),
    ("other&principal=bob", ["c"]),
]


@pytest.fixture
def three(api: ApiOf) -> dict[str, str]:
    session = make_session(api())
    texts = {
        "a": ("refund.above-limit", "critical", "A refund went out without a second person", None),
        "b": ("pii.in-log", "high", "A note on a refund", "It was for the STRASSE, 7."),
    }
    fields = ("rule", "severity", "title", "detail")
    made = {
        name: make_finding(api(), session["id"], **dict(zip(fields, each, strict=True)))
        for name, each in texts.items()
    }
    others = make_session(api(), session["agent_id"], principal="bob")
    made["c"] = make_finding(
        api(), others["id"], rule="a.rule", title="other", detail="one two three"
    )
    apart = "one two and two three"
    made["d"] = make_finding(api(), others["id"], rule="a.rule", title="apart", detail=apart)
    return {found["id"]: name for name, found in made.items()}


def index(database: Database, tenant: FreshTenant) -> int:
    with database.transaction(tenant.id) as session:
        return word_index.index_piece(session, SOURCE, tenant.id, ids.new())


def names(api: Any, query: str, known: dict[str, str]) -> list[str]:
    words, _, others = query.partition("&")
    answer = api.get(f"/v1/findings?q={quote(words)}&{others}")
    assert answer.status_code == 200, answer.json
    return [known[each["id"]] for each in answer.json["data"]]


def test_words_find_the_same_before_and_after_they_are_indexed(
    api: ApiOf, database: Database, tenant: FreshTenant, three: dict[str, str]
) -> None:
    expected = [found for _, found in MATCHING]
    assert [names(api(), query, three) for query, _ in MATCHING] == expected
    assert index(database, tenant) == len(three)
    assert index(database, tenant) == 0, "each is indexed once"
    assert [names(api(), query, three) for query, _ in MATCHING] == expected


@pytest.mark.parametrize("indexed", [0, 1, 3, 7])
def test_pages_go_from_what_is_not_indexed_to_what_is(
    api: ApiOf, database: Database, tenant: FreshTenant, indexed: int
) -> None:
    session = make_session(api())
    made = []
    for n in range(7):
        made.append(make_finding(api(), session["id"], title=f"pear {n}")["id"])
        if n + 1 == indexed:
            index(database, tenant)
    found = all_pages(api(), "/v1/findings?q=pear&limit=2")
    assert [each["id"] for each in found] == made[::-1]


def test_a_page_reads_a_bounded_part_of_what_is_not_indexed_and_goes_on(api: ApiOf) -> None:
    session = make_session(api())
    rare = make_finding(api(), session["id"], title="a rare pear")["id"]
    batch = {"findings": [finding_of(session["id"], title="an apple")] * 1000}
    for _ in range(MOST_READ // 1000):
        assert api().post("/v1/findings/batch", batch).status_code == 201
    first = api().get("/v1/findings?q=pear").json
    assert first["data"] == []
    rest = api().get(f"/v1/findings?q=pear&cursor={first['next_cursor']}").json
    assert [each["id"] for each in rest["data"]] == [rare]
    assert rest["next_cursor"] is None


def test_the_index_stays_behind_what_may_still_be_committed(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    session = make_session(api())
    with database.transaction(tenant.id) as writing:
        writing.execute(text("UPDATE tenants SET name = 'busy' WHERE id = :id"), {"id": tenant.id})
        began = writing.scalar(text("SELECT transaction_timestamp()"))
        make_finding(api(), session["id"])
        with database.across_tenants() as other:
            assert word_index.floor(other)[0] < ids.earliest_at(began)
    with database.across_tenants() as other:
        now = word_index.floor(other)[1]
        early, late = ids.earliest_at(began), ids.new()
        assert tenant.id not in word_index.behind(other, SOURCE, early, now, 1000)
        assert tenant.id in word_index.behind(other, SOURCE, late, now, 1000)


_AGED = {
    "findings": """
INSERT INTO findings (tenant_id, id, session_id, agent_id, principal, rule, severity, title)
SELECT tenant_id, :id, session_id, agent_id, principal, rule, severity, 'an old pear'
  FROM findings WHERE tenant_id = :tenant
""",
    "records": """
INSERT INTO records (tenant_id, id, session_id, agent_id, principal, kind, title, labels_json,
                     occurred_at, bundle_sha256, bundle_size, key_id, signature, created_at)
SELECT tenant_id, :id, session_id, agent_id, principal, kind, 'an old pear', labels_json,
       occurred_at, bundle_sha256, bundle_size, key_id, signature, created_at
  FROM records WHERE tenant_id = :tenant
""",
}
_POISONED = "ALTER TABLE {} ADD CONSTRAINT poisoned CHECK (tenant_id <> '{}') NOT VALID"


def test_a_tick_indexes_what_is_settled_of_each_tenant_and_one_that_fails_holds_up_no_other(
    api: ApiOf,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    settings: Settings,
    admin_engine: Engine,
) -> None:
    age, old = timedelta(days=2), {}
    for each in (tenant, other_tenant):
        owner, old[each.id] = api(each.root_key), ids.new(clock.now() - age)
        session = make_session(owner)
        make_finding(owner, session["id"], title="a young pear")
        make_record(owner, session["id"], title="a young pear")
        with admin_engine.begin() as connection:
            for statement in _AGED.values():
                connection.execute(text(statement), {"tenant": each.id, "id": old[each.id]})
        age -= timedelta(days=1)

    def indexed(table: str, row: str) -> set[tuple[Any, ...]]:
        with admin_engine.connect() as connection:
            found = connection.execute(text(f"SELECT tenant_id, {row} FROM {table}"))
            return {tuple(each) for each in found} & set(old.items())

    tables = {"finding_words": "finding_id", "record_words": "record_id"}
    with opened_runtime(settings) as worker:
        for table in tables:
            # Of the two it waits longer.
            with admin_engine.begin() as connection:
                connection.execute(text(_POISONED.format(table, tenant.id)))
        ticks.index_words(worker)
        for table, row in tables.items():
            assert indexed(table, row) == {(other_tenant.id, old[other_tenant.id])}
            with admin_engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT poisoned"))
        for _ in range(2):
            ticks.index_words(worker)
            for table, row in tables.items():
                assert indexed(table, row) == set(old.items())
    for path in ("/v1/findings?q=pear", "/v1/records?q=pear"):
        found = api().get(path).json["data"]
        assert [each["title"] for each in found] == ["a young pear", "an old pear"]


def test_a_pinned_key_and_a_stranger_find_only_what_is_theirs(
    api: ApiOf,
    mint: Callable[..., str],
    database: Database,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
) -> None:
    principal = "o'brien \\ 'sons'"
    mine, theirs = make_session(api(), principal=principal), make_session(api())
    own = make_finding(api(), mine["id"], title="a pear")
    make_finding(api(), theirs["id"], title="a pear")
    pinned = api(mint("read", pin_of(mine)))
    for _ in ("before", "after"):
        (found,) = pinned.get("/v1/findings?q=pear").json["data"]
        assert found["id"] == own["id"]
        assert api(other_tenant.root_key).get("/v1/findings?q=pear").json["data"] == []
        index(database, tenant)


@pytest.mark.parametrize("query", ["q=%E2%80%A6", "q=---", "q=", "q=a&q=b"])
def test_a_search_without_a_word_is_refused(api: ApiOf, query: str) -> None:
    assert pointers(api().get(f"/v1/findings?{query}")) == ["/q"]


@pytest.mark.parametrize("query", ["limit=200", "limit=200&q=written"])
def test_a_page_of_large_findings_ends_before_it_is_too_large(api: ApiOf, query: str) -> None:
    session_id = make_session(api())["id"]
    made = [make_finding(api(), session_id, data="x" * 200_000)["id"] for _ in range(26)]

    first = api().get(f"/v1/findings?{query}")
    seen = [each["id"] for each in first.json["data"]]
    assert 1 < len(seen) < 26
    assert len(first.data) < feeds.MOST_JSON + 2**20
    rest = api().get(f"/v1/findings?{query}&cursor={quote(first.json['next_cursor'])}").json
    assert [*seen, *(each["id"] for each in rest["data"])] == made[::-1]
    assert rest["next_cursor"] is None
