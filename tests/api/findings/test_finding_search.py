"""Findings by words, found as soon as they are committed."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from app.core import feeds
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import (
    all_pages,
    make_finding,
    make_session,
    pin_of,
    pointers,
)

MATCHING = [
    ("refund", ["b", "a"]),
    ("REFUND limit", ["a"]),
    ("pii.in-log", ["b"]),
    ("refund.above-limit", ["a"]),
    ('"second person"', ["a"]),
    ('"person second"', []),
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
    made["c"] = make_finding(api(), others["id"], rule="a.rule", title="other")
    return {found["id"]: name for name, found in made.items()}


def names(api: Any, query: str, known: dict[str, str]) -> list[str]:
    words, _, others = query.partition("&")
    answer = api.get(f"/v1/findings?q={quote(words)}&{others}")
    assert answer.status_code == 200, answer.json
    return [known[each["id"]] for each in answer.json["data"]]


def test_words_phrases_and_filters_find_what_has_them_all(
    api: ApiOf, three: dict[str, str]
) -> None:
    found = [names(api(), query, three) for query, _ in MATCHING]
    assert found == [expected for _, expected in MATCHING]


def test_pages_go_on_where_the_last_one_ended(api: ApiOf) -> None:
    session = make_session(api())
    made = [make_finding(api(), session["id"], title=f"pear {n}")["id"] for n in range(7)]
    found = all_pages(api(), "/v1/findings?q=pear&limit=2")
    assert [each["id"] for each in found] == made[::-1]


def test_a_pinned_key_and_a_stranger_find_only_what_is_theirs(
    api: ApiOf, mint: Callable[..., str], other_tenant: FreshTenant
) -> None:
    principal = "o'brien \\ 'sons'"
    mine, theirs = make_session(api(), principal=principal), make_session(api())
    own = make_finding(api(), mine["id"], title="a pear")
    make_finding(api(), theirs["id"], title="a pear")
    pinned = api(mint("read", pin_of(mine)))
    (found,) = pinned.get("/v1/findings?q=pear").json["data"]
    assert found["id"] == own["id"]
    assert api(other_tenant.root_key).get("/v1/findings?q=pear").json["data"] == []


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
