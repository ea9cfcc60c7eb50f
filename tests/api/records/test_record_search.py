"""Records are found by their words, within the tenant and the pin."""

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from app.core.word_index import MOST_WORDS, in_text
from app.database import Database
from app.settings import Settings
from tests.api.records.steps import STEP
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import all_pages, make_record, pointers, refused
from tests.support.database.storing import index_words

MATCHING = [
    ("q=refunded", ["title"]),
    ("q=REFUNDED", ["title"]),
    ("q=marzipan", ["title", "content"]),
    ("q=marzipan+tool", ["title", "content"]),
    ("q=%22refunded+marzipan%22", ["title"]),
    ("q=%22marzipan+refunded%22", []),
    ("q=%22marzipan+4711%22", []),
    ("q=4711", ["content"]),
    ("q=stra%C3%9Fe", ["content"]),
    ("q=STRASSE", ["content"]),
    ("q=production", ["content"]),
    ("label=env:production", ["content"]),
    ("label=env:production&label=tier:1", ["content"]),
    ("label=env:production&label=tier:2", []),
    ("label=env:prod", []),
    ("q=marzipan&label=env:production", ["content"]),
    ("kind=tool.call", ["content", "title"]),
    ("kind=other", []),
    ("q=thee", []),
    ("q=look", ["content"]),
    ("q=receipt-9", ["content"]),
]


@pytest.fixture
def index(database: Database, settings: Settings, tenant: FreshTenant) -> Callable[[], int]:
    """Return what indexes the tenant's records, and returns how many there were."""
    return lambda: index_words(database, settings, tenant.id)[1]


def test_records_are_found_alike_before_and_after_they_are_indexed(
    api: ApiOf, session: dict[str, Any], index: Callable[[], int]
) -> None:
    made = {
        "title": make_record(api(), session["id"], title="refunded Marzipan", content="nothing"),
        "content": make_record(
            api(),
            session["id"],
            title="untitled",
            labels={"env": "production", "tier": "1"},
            content={"sweets": ["marzipan", {"order": 4711}], "to": "Lange Straße 5"},
            steps=[STEP | {"inputs": ["receipt-9.pdf"], "outputs": {"receipt-9": 1}}],
        ),
    }
    names = {record["id"]: name for name, record in made.items()}

    def found(query: str) -> list[str]:
        return [names[row["id"]] for row in api().get(f"/v1/records?{query}").json["data"]]

    expected = [names for _, names in MATCHING]
    assert [found(query) for query, _ in MATCHING] == expected
    assert index() == 2
    assert index() == 0, "each is indexed once"
    assert [found(query) for query, _ in MATCHING] == expected


@pytest.mark.parametrize("indexed", [0, 3, 6, 8])
def test_pages_of_a_search_hold_every_record_once(
    api: ApiOf, session: dict[str, Any], index: Callable[[], int], indexed: int
) -> None:
    made: dict[str, list[str]] = {"title": [], "content": []}
    for n in range(8):
        kind = ("title", "content")[n % 2]
        made[kind].insert(0, make_record(api(), session["id"], **{kind: "a pear"})["id"])
        if n + 1 == indexed:
            index()

    # Records that arrive between two pages, and their index, move nothing.
    def meanwhile() -> None:
        make_record(api(), session["id"], title="a pear")
        index()

    seen = all_pages(api(), "/v1/records?q=pear&limit=3", meanwhile)

    assert [row["id"] for row in seen] == [*made["title"], *made["content"]]


def test_a_page_reads_a_bounded_part_of_what_is_not_indexed_and_goes_on(
    api: ApiOf, session: dict[str, Any], index: Callable[[], int]
) -> None:
    old = make_record(api(), session["id"], content="a rare pear")["id"]
    index()
    rare = make_record(api(), session["id"], content="a rare pear")["id"]
    for _ in range(3):
        make_record(api(), session["id"], content="apple " * 100_000)
    seen, cursor = [], ""
    for _ in range(10):
        page = api().get(f"/v1/records?q=pear{cursor}").json
        seen.append([each["id"] for each in page["data"]])
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == [[], [rare, old]]
    hits = api().get("/v1/search?q=pear").json["data"]
    assert [each["id"] for each in hits] == [old], "of the tail only the newest are read"


@pytest.mark.parametrize("query", ["q=%E2%80%A6", "q=---", "q=", "label=x", "label=:y", "q=a&q=b"])
def test_a_search_for_nothing_is_refused(api: ApiOf, query: str) -> None:
    assert pointers(api().get(f"/v1/records?{query}"))


def test_only_the_first_words_of_a_long_content_are_searched(
    api: ApiOf, session: dict[str, Any]
) -> None:
    words = " ".join(f"w{n}" for n in range(MOST_WORDS + 10))
    made = make_record(api(), session["id"], content=words)
    assert api().get("/v1/records?q=w1000").json["data"][0]["id"] == made["id"]
    assert api().get(f"/v1/records?q=w{MOST_WORDS + 5}").json["data"] == []


def test_one_tenant_never_finds_what_another_wrote(
    api: ApiOf, session: dict[str, Any], other_tenant: FreshTenant
) -> None:
    made = make_record(api(), session["id"], title="ours")
    stranger = api(other_tenant.root_key)
    assert stranger.get("/v1/records?q=ours").json["data"] == []
    refused(stranger.get(f"/v1/records/{made['id']}"), 404, "not-found")


@pytest.mark.parametrize(
    ("typed", "title", "content"),
    [
        ("order-300", "", [f"order-{n}" for n in range(400)]),
        ("2026-11-300", "", [f"2026-11-{n}" for n in range(400)]),
        ("退款", "处理了退款请求", ""),
        ("返金", "", "顧客に返金しました"),
        ("हिन्दी", "हिन्दी में", ""),
        ("cafe\u0301", "Café", ""),
        ("order 300", "", "the order 300 came"),
        ('"order 300"', "", "the order-300 came"),
        ('"order 30 came"', "", "the order-30 came"),
    ],
)
def test_what_stands_in_a_text_is_found_in_any_script_and_in_long_lists(
    api: ApiOf, session: dict[str, Any], typed: str, title: str, content: Any
) -> None:
    made = make_record(api(), session["id"], title=title or "untitled", content=content)
    make_record(api(), session["id"], title="हद", content="order 30 or 30 came and 退 款")
    found = api().get("/v1/records", query_string={"q": typed}).json["data"]
    assert [row["id"] for row in found] == [made["id"]]


def test_words_are_taken_apart_in_a_time_that_grows_with_the_text_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Marks in a row are sorted when they are normalised, in a time that grows with its square."""
    normalize, costs = unicodedata.normalize, []

    def counted(form: Any, text: str) -> str:
        costs.append(len(text) ** 2)
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", counted)

    def cost(length: int) -> int:
        costs.clear()
        in_text("a" + "\u0301" * (length // 2) + "\u0323" * (length // 2))
        return sum(costs)

    few = cost(20_000)
    assert 0 < cost(200_000) < 15 * few
