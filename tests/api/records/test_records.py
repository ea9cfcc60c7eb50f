"""Records: what is posted is signed as it is, found by its words, and read back without content."""

import base64
import unicodedata
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from flask import Flask

from app import ids, metrics
from app.api.http import bulkhead
from app.api.http.requests import large_bodies
from app.api.http.services import EXTENSION
from app.core.callers import Caller, Role
from app.core.records import bundles, records
from app.core.records.records import NewRecord
from app.core.words.tokenizer import MOST_WORDS, in_text
from app.database import Database
from app.errors import SessionCompleted
from app.evidence import bundle
from app.ids import parse
from app.lib.crypto.signing import PublicKey
from app.lib.gateway.gateway import REFUSED_BEFORE
from app.settings import Settings
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import (
    NOBODY,
    make_agent,
    make_record,
    make_session,
    pin_of,
    pointers,
    record_of,
    refused,
)

STEP = {
    "name": "look up the order",
    "kind": "tool",
    "started_at": "2026-01-31T12:00:00Z",
    "ended_at": "2026-01-31T13:00:00.5+01:00",
    "status": "ok",
}


@pytest.fixture
def session(api: ApiOf) -> dict[str, Any]:
    """Return an open session."""
    return make_session(api())


def test_a_record_is_answered_with_what_proves_it(api: ApiOf, session: dict[str, Any]) -> None:
    made = make_record(api(), session["id"], labels={"env": "production"})
    assert made["session_id"] == session["id"]
    assert made["agent_id"] == session["agent_id"]
    assert made["principal"] == session["principal"]
    assert made["labels"] == {"env": "production"}
    assert made["occurred_at"] == made["created_at"]
    assert made["bundle"]["expired"] is False
    assert made["log"] == {"status": "pending", "index": None}
    assert "content" not in made
    assert api().get(f"/v1/records/{made['id']}").json == made


def test_the_bundle_is_what_was_posted_signed_by_the_key_it_names(
    api: ApiOf,
    session: dict[str, Any],
    database: Database,
    settings: Settings,
    tenant: FreshTenant,
) -> None:
    steps = [STEP | {"inputs": ["order.json"], "outputs": {"total": 12.5}, "attributes": {"n": 1}}]
    made = make_record(
        api(), session["id"], content={"z": 1e21, "ä": None}, steps=steps, labels={"a": "b"}
    )
    record_id = parse("rec", made["id"])
    assert record_id is not None
    with database.transaction(tenant.id) as opened:
        raw = bundles.read(opened, settings.master_keys, tenant.id, record_id)
    assert raw is not None
    assert sha256(raw).hexdigest() == made["bundle"]["sha256"]
    assert len(raw) == made["bundle"]["size"]
    kept = bundle.read(raw)
    assert kept["content"] == {"z": 1e21, "ä": None}
    assert kept["record"]["id"] == made["id"]
    assert kept["record"]["tenant_id"] == f"ten_{tenant.id.hex}"
    assert kept["steps"][0]["ended_at"] == "2026-01-31T12:00:00.500000Z"
    assert kept["steps"][0]["events"] == []
    assert kept["key_id"] == made["bundle"]["key_id"]


def test_no_two_bundles_are_alike(api: ApiOf, session: dict[str, Any]) -> None:
    first, second = (make_record(api(), session["id"])["bundle"]["sha256"] for _ in range(2))
    assert first != second


def test_a_completed_session_takes_no_more_records(api: ApiOf, session: dict[str, Any]) -> None:
    api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})
    refused(api().post("/v1/records", record_of(session["id"])), 409, "session-completed")


def test_a_session_that_is_not_there_is_not_found(api: ApiOf) -> None:
    refused(api().post("/v1/records", record_of(f"ses_{NOBODY}")), 404, "not-found")


def test_a_pinned_key_posts_and_finds_within_its_pin_alone(
    api: ApiOf, session: dict[str, Any], mint: Callable[..., str]
) -> None:
    outside = make_session(api(), make_agent(api())["id"])
    pinned = api(mint("write", pin_of(session)))
    mine = make_record(pinned, session["id"], title="mine alone")
    other = make_record(api(), outside["id"], title="mine not")
    refused(pinned.post("/v1/records", record_of(outside["id"])), 404, "not-found")
    refused(pinned.get(f"/v1/records/{other['id']}"), 404, "not-found")
    assert [row["id"] for row in pinned.get("/v1/records").json["data"]] == [mine["id"]]
    assert [row["id"] for row in pinned.get("/v1/records?q=mine").json["data"]] == [mine["id"]]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"title": ""}, "/title"),
        ({"kind": 1}, "/kind"),
        ({"labels": {"a:b": "c"}}, "/labels/a:b"),
        ({"labels": {"a": 1}}, "/labels/a"),
        ({"labels": {str(n): "" for n in range(65)}}, "/labels"),
        ({"labels": []}, "/labels"),
        ({"occurred_at": "yesterday"}, "/occurred_at"),
        ({"surprise": 1}, "/surprise"),
        ({"steps": {}}, "/steps"),
        ({"steps": [{}]}, "/steps/0/ended_at"),
        ({"steps": [STEP | {"ended_at": "2026-01-31T11:00:00Z"}]}, "/steps/0/ended_at"),
        ({"steps": [STEP | {"status": "fine"}]}, "/steps/0/status"),
        ({"steps": [STEP | {"inputs": [1]}]}, "/steps/0/inputs"),
        ({"steps": [STEP | {"events": [{"name": "x"}]}]}, "/steps/0/events/0/at"),
        ({"steps": [STEP | {"attributes": []}]}, "/steps/0/attributes"),
    ],
)
def test_what_is_wrong_is_pointed_to(
    api: ApiOf, session: dict[str, Any], fields: dict[str, Any], pointer: str
) -> None:
    assert pointer in pointers(api().post("/v1/records", record_of(session["id"], **fields)))


def test_content_must_be_there_and_may_be_null(api: ApiOf, session: dict[str, Any]) -> None:
    body = record_of(session["id"])
    del body["content"]
    assert pointers(api().post("/v1/records", body)) == ["/content"]
    make_record(api(), session["id"], content=None)


def test_a_record_may_have_8_mib_and_no_more(api: ApiOf, session: dict[str, Any]) -> None:
    empty = len(str(record_of(session["id"], content="")))
    large = make_record(api(), session["id"], content="x" * (8 * 1024 * 1024 - empty - 100))
    assert large["bundle"]["size"] > 8 * 1024 * 1024 - 1000
    too_large = api().post("/v1/records", record_of(session["id"], content="x" * 8 * 1024 * 1024))
    assert "8 MiB" in refused(too_large, 413, "body-too-large")["detail"]


def test_the_same_idempotency_key_makes_one_record(api: ApiOf, session: dict[str, Any]) -> None:
    first, second = (
        api().post("/v1/records", record_of(session["id"]), headers={"Idempotency-Key": "once"})
        for _ in range(2)
    )
    assert first.json == second.json
    assert len(api().get("/v1/records").json["data"]) == 1


@pytest.mark.parametrize(
    ("query", "found"),
    [
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
    ],
)
def test_records_are_found(
    api: ApiOf, session: dict[str, Any], query: str, found: list[str]
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
    answer = api().get(f"/v1/records?{query}").json
    assert [names[row["id"]] for row in answer["data"]] == found


def test_pages_of_a_search_hold_every_record_once(api: ApiOf, session: dict[str, Any]) -> None:
    told = [make_record(api(), session["id"], title="a pear")["id"] for _ in range(4)]
    inside = [make_record(api(), session["id"], content="a pear")["id"] for _ in range(4)]
    seen: list[str] = []
    url = "/v1/records?q=pear&limit=3"
    while url:
        page = api().get(url)
        seen += [row["id"] for row in page.json["data"]]
        # What comes in while somebody reads moves nothing.
        make_record(api(), session["id"], title="a pear")
        cursor = page.json["next_cursor"]
        url = f"/v1/records?q=pear&limit=3&cursor={cursor}" if cursor else ""
    assert seen == [*reversed(told), *reversed(inside)]


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


def test_the_signature_verifies_with_the_published_key(
    api: ApiOf,
    session: dict[str, Any],
    database: Database,
    settings: Settings,
    tenant: FreshTenant,
) -> None:
    from sqlalchemy import text

    made = make_record(api(), session["id"])
    record_id = parse("rec", made["id"])
    assert record_id is not None
    with database.transaction(tenant.id) as opened:
        raw = bundles.read(opened, settings.master_keys, tenant.id, record_id)
        public = opened.scalar(
            text("SELECT public_key FROM signing_keys WHERE key_id = :id"),
            {"id": made["bundle"]["key_id"]},
        )
    assert raw is not None
    key = PublicKey(public)
    assert key.id == made["bundle"]["key_id"]
    assert key.verifies(base64.b64decode(made["bundle"]["signature"]), raw)


@pytest.mark.parametrize(
    ("typed", "title", "content"),
    [
        ("order-300", "", [f"order-{n}" for n in range(400)]),
        ("2026-11-21", "", [f"2026-11-{n:02}" for n in range(1, 31)] * 20),
        ("退款", "处理了退款请求", ""),
        ("返金", "", "顧客に返金しました"),
        ("हिन्दी", "हिन्दी में", ""),
        ("cafe\u0301", "Café", ""),
        ("order 300", "", "the order 300 came"),
        ('"order 300"', "", "the order-300 came"),
    ],
)
def test_what_stands_in_a_text_is_found_in_any_script_and_in_long_lists(
    api: ApiOf, session: dict[str, Any], typed: str, title: str, content: Any
) -> None:
    made = make_record(api(), session["id"], title=title or "untitled", content=content)
    make_record(api(), session["id"], title="हद", content="order 30 and 退 款")
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


def test_a_record_comes_in_while_another_is_signed(
    database: Database, settings: Settings, tenant: FreshTenant, api: ApiOf
) -> None:
    """Between draft and store a session may be completed, and then takes the record no more."""
    session = make_session(api())
    session_id = parse("ses", session["id"])
    assert session_id is not None
    caller = Caller(tenant.id, ids.new(), Role.WRITE, None, "test")
    with database.transaction(tenant.id) as opened:
        draft = records.draft(opened, caller, settings.master_keys, session_id)
    assert draft is not None
    signed = records.sign(caller, draft, NewRecord(session_id, "k", "t", None))
    done = api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})
    assert done.status_code == 200
    with pytest.raises(SessionCompleted), database.transaction(tenant.id) as opened:
        records.add(opened, caller, settings, session_id, signed)
    assert api().get("/v1/records").json["data"] == []


def test_a_large_record_without_room_is_asked_to_come_back_before_it_is_read(
    app: Flask, api: ApiOf, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulkhead, "_WAIT_SECONDS", 0.01)
    large = large_bodies.LARGE + 1
    here = app.extensions[EXTENSION]
    refusals = here.tally.value(metrics.WEB_REFUSED, "large_work")
    others = ["another tenant", "and another"]
    for other in others:
        here.large.enter(other)
    answer = api().post("/v1/records", data=b"x" * large, content_type="application/json")
    assert refused(answer, 503, "busy")
    assert answer.headers["Retry-After"]
    make_record(api(), session["id"])
    for other in others:
        here.large.leave(other)
    assert here.tally.value(metrics.WEB_REFUSED, "large_work") == refusals + 1
    answer = api().post("/v1/records", data=b"x" * large, content_type="application/json")
    refused(answer, 400, "malformed-body")


def test_a_request_that_was_refused_a_moment_ago_is_refused_before_anything_is_asked(
    app: Flask, api: ApiOf
) -> None:
    tally = app.extensions[EXTENSION].tally
    before = tally.value(metrics.WEB_REFUSED, "early_retry")
    told = {REFUSED_BEFORE: "There is too much to do."}
    answer = api(None).get("/v1/records", environ_overrides=told)

    assert refused(answer, 503, "busy")["detail"] == "There is too much to do."
    assert answer.headers["Retry-After"]
    assert tally.value(metrics.WEB_REFUSED, "early_retry") == before + 1
