"""Findings by words: found at once, indexed later, and alike in both."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine, text

from app import clock, ids
from app.core import feeds, finding_search
from app.core.finding_search import MOST_READ
from app.database import Database
from app.settings import Settings
from jobs.actors import ticks
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import (
    all_pages,
    finding_of,
    make_finding,
    make_session,
    pin_of,
    pointers,
)
from tests.support.evidence.packing import opened_runtime

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
        return finding_search.index_piece(session, tenant.id, ids.new())


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
    with database.transaction(tenant.id) as late:
        late.execute(text("UPDATE tenants SET name = 'busy' WHERE id = :id"), {"id": tenant.id})
        began = late.scalar(text("SELECT transaction_timestamp()"))
        make_finding(api(), session["id"])
        with database.across_tenants() as other:
            assert finding_search.floor(other) < ids.earliest_at(began)
    with database.across_tenants() as other:
        assert tenant.id not in finding_search.behind(other, ids.earliest_at(began), 1000)
        assert tenant.id in finding_search.behind(other, ids.new(), 1000)


_AGED = """
INSERT INTO findings (tenant_id, id, session_id, agent_id, principal, rule, severity, title)
SELECT tenant_id, :id, session_id, agent_id, principal, rule, severity, 'an old pear'
  FROM findings WHERE tenant_id = :tenant
"""


def test_a_tick_indexes_what_is_settled_for_each_tenant_and_the_next_nothing(
    api: ApiOf,
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    settings: Settings,
    admin_engine: Engine,
) -> None:
    old = {each.id: ids.new(clock.now() - timedelta(days=1)) for each in (tenant, other_tenant)}
    for each in (tenant, other_tenant):
        owner = api(each.root_key)
        make_finding(owner, make_session(owner)["id"], title="a young pear")
        with admin_engine.begin() as connection:
            connection.execute(text(_AGED), {"tenant": each.id, "id": old[each.id]})
    with opened_runtime(settings) as worker:
        for _ in range(2):
            ticks.index_findings(worker)
            with admin_engine.connect() as connection:
                rows = connection.execute(text("SELECT tenant_id, finding_id FROM finding_words"))
                assert {tuple(row) for row in rows} >= set(old.items())
    found = api().get("/v1/findings?q=pear").json["data"]
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
