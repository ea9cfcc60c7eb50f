"""Many records in one request: each for itself, or all of them or none."""

import gzip
import json
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.api.records.steps import STEP
from tests.support.callers.api import Answer, Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import NOBODY, make_session, record_of, refused, revoke

BATCH = "/v1/records/batch"
JSON = "application/json"


def titles(api: Api) -> list[str]:
    return [each["title"] for each in api.get("/v1/records?limit=200").json["data"]][::-1]


def slugs(answer: Answer) -> list[str | None]:
    return [
        each["problem"]["type"].rpartition("/")[2] if "problem" in each else None
        for each in answer.json["data"]
    ]


def test_records_are_answered_in_their_order_and_are_those_that_their_gets_answer(
    api: ApiOf, admin_engine: Engine
) -> None:
    one, other = make_session(api()), make_session(api())
    body = [
        record_of((one, other)[n % 2]["id"], title=f"record {n}", content={"n": n}, steps=[STEP])
        for n in range(1000)
    ]
    answer = api().post(BATCH, {"records": body})
    assert answer.status_code == 201
    made = answer.json["data"]
    assert [each["title"] for each in made] == [each["title"] for each in body]
    assert made[1]["session_id"] == other["id"]
    newest = api().get("/v1/records?limit=200").json["data"]
    assert newest == made[:-201:-1], "they are in the order of their creation"
    for each in (made[0], made[999]):
        bundle = api().get(f"/v1/records/{each['id']}/bundle")
        assert bundle.json["content"] == {"n": made.index(each)}
    digests = [bytes.fromhex(each["bundle"]["sha256"]) for each in made]
    leaves = "SELECT count(*) FROM log_leaves WHERE data = ANY (:leaves)"
    written = [b'{"bundle_sha256":"%b","type":"record"}' % each.hex().encode() for each in digests]
    with admin_engine.connect() as connection:
        assert connection.scalar(text(leaves), {"leaves": written}) == 1000


def test_what_is_wrong_with_one_costs_no_other(api: ApiOf) -> None:
    ended, session_id = make_session(api())["id"], make_session(api())["id"]
    done = api().post(f"/v1/sessions/{ended}/complete", {"outcome": "succeeded"})
    assert done.status_code == 200
    body = [
        record_of(session_id, title="a"),
        record_of(session_id, title="", colour="red"),
        7,
        record_of("ses_" + NOBODY),
        record_of(ended),
        record_of(session_id, title="b", idempotency_key="ü"),
        record_of(session_id, title="c"),
    ]
    answer = api().post(BATCH, {"records": body})
    assert answer.status_code == 201
    wrong, missing = "validation-failed", "not-found"
    assert slugs(answer) == [None, wrong, wrong, missing, "session-completed", wrong, None]
    entries = answer.json["data"]
    assert [each["pointer"] for each in entries[1]["problem"]["errors"]] == ["/colour", "/title"]
    assert entries[2]["problem"]["errors"][0]["pointer"] == ""
    assert entries[3]["problem"] == {
        "status": 404,
        "type": "https://records.test/problems/not-found",
        "errors": [{"pointer": "", "detail": "There is no session with this id."}],
    }
    assert entries[5]["problem"]["errors"][0]["pointer"] == "/idempotency_key"
    assert titles(api()) == ["a", "c"]


@pytest.mark.parametrize(
    ("fault", "status", "slug", "pointers"),
    [
        ({"title": ""}, 422, "validation-failed", ["/records/1/title", "/records/2/title"]),
        ({"session_id": "ses_" + NOBODY}, 404, "not-found", ["/records/1", "/records/2"]),
    ],
)
def test_an_atomic_batch_with_a_fault_stores_nothing_and_points_to_it(
    api: ApiOf, fault: dict[str, Any], status: int, slug: str, pointers: list[str]
) -> None:
    session_id = make_session(api())["id"]
    good, bad = record_of(session_id), record_of(session_id) | fault
    problem = refused(
        api().post(f"{BATCH}?atomic=true", {"records": [good, bad, bad]}), status, slug
    )
    assert [each["pointer"] for each in problem["errors"]] == pointers
    assert titles(api()) == []
    whole = api().post(f"{BATCH}?atomic=true", {"records": [good, good]})
    assert (whole.status_code, slugs(whole)) == (201, [None, None])


def test_an_atomic_batch_is_refused_by_what_only_the_database_knows(api: ApiOf) -> None:
    open_one, ended = make_session(api())["id"], make_session(api())["id"]
    done = api().post(f"/v1/sessions/{ended}/complete", {"outcome": "succeeded"})
    assert done.status_code == 200
    key = "1"
    before = api().post("/v1/records", record_of(open_one), headers={"Idempotency-Key": key}).json
    body = [record_of(open_one, idempotency_key=key), record_of(open_one), record_of(ended)]
    problem = refused(
        api().post(f"{BATCH}?atomic=true", {"records": body}), 409, "session-completed"
    )
    assert [each["pointer"] for each in problem["errors"]] == ["/records/2"]
    assert [each["id"] for each in api().get("/v1/records").json["data"]] == [before["id"]]
    stored = api().post(f"{BATCH}?atomic=true", {"records": body[:2]})
    assert stored.json["data"][0] == before
    assert len(titles(api())) == 2


def test_each_record_has_its_own_idempotency_key_which_is_that_of_the_single_route(
    api: ApiOf,
) -> None:
    session_id = make_session(api())["id"]
    alone = record_of(session_id, title="alone")
    single = api().post("/v1/records", alone, headers={"Idempotency-Key": "one"})
    body = {
        "records": [
            alone | {"idempotency_key": "one"},
            record_of(session_id, title="another", idempotency_key="one"),
            record_of(session_id, title="two", idempotency_key="two"),
            record_of(session_id, title="two", idempotency_key="two"),
            record_of(session_id, title="without"),
        ]
    }
    first = api().post(BATCH, body)
    assert slugs(first) == [
        *(None, "idempotency-key-reused", None, "idempotency-key-in-use", None),
    ]
    assert first.json["data"][0] == single.json
    again = api().post(BATCH, body)
    assert slugs(again) == [None, "idempotency-key-reused", None, None, None]
    assert again.json["data"][3] == again.json["data"][2] == first.json["data"][2]
    assert titles(api()) == ["alone", "two", "without", "without"]
    repeated = api().post("/v1/records", body["records"][2], headers={"Idempotency-Key": "two"})
    refused(repeated, 422, "validation-failed")
    two = record_of(session_id, title="two")
    repeated = api().post("/v1/records", two, headers={"Idempotency-Key": "two"})
    assert repeated.headers["Idempotent-Replayed"] == "true"
    assert repeated.json == first.json["data"][2]


@pytest.mark.parametrize("atomic", ["", "?atomic=true"])
def test_a_whole_batch_is_repeated_by_its_header(api: ApiOf, atomic: str) -> None:
    session_id = make_session(api())["id"]
    sent = {"json": {"records": [record_of(session_id)] * 3}, "headers": {"Idempotency-Key": "k"}}
    first = api().post(BATCH + atomic, **sent)
    again = api().post(BATCH + atomic, **sent)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json == first.json
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(titles(api())) == 3


def test_a_batch_of_which_nothing_can_be_stored_is_repeated_too(api: ApiOf) -> None:
    bad = {"records": [record_of("ses_" + NOBODY, title="")] * 2}
    first, again = (api().post(BATCH, bad, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.status_code, again.json) == (201, first.json)
    assert [each["problem"]["status"] for each in first.json["data"]] == [422, 422]
    assert again.headers["Idempotent-Replayed"] == "true"


def test_a_revoked_key_stores_none_and_learns_nothing(
    api: ApiOf, mint: Mint, tenant: FreshTenant
) -> None:
    session_id, key = make_session(api())["id"], mint("write")
    good, bad = record_of(session_id), record_of("ses_" + NOBODY, title="")
    assert api(key).post(BATCH, {"records": [good]}).status_code == 201
    revoke(api, key)
    for records in ([good], [bad], [good, bad]):
        for headers in ({}, {"Idempotency-Key": "k"}):
            answer = api(key).post(BATCH, {"records": records}, headers=headers)
            refused(answer, 401, "unauthenticated")
    assert len(titles(api())) == 1


def test_a_batch_has_1_to_1000_records_and_8_mib_packed_or_not(api: ApiOf) -> None:
    session_id = make_session(api())["id"]
    for count in (0, 1001):
        answer = api().post(BATCH, {"records": [record_of(session_id)] * count})
        assert refused(answer, 422, "validation-failed")["errors"][0]["pointer"] == "/records"
    assert refused(api().post(BATCH, {"records": {"0": {}}}), 422, "validation-failed")
    large = json.dumps({"records": [record_of(session_id, content="x" * 2**20)] * 7}).encode()
    coding = {"Content-Encoding": "gzip"}
    for raw, headers in ((large, {}), (gzip.compress(large), coding)):
        answer = api().post(BATCH, data=raw, content_type=JSON, headers=headers)
        assert slugs(answer) == [None] * 7
    over = large[:-1].ljust(8 * 2**20) + b"}"
    for raw, headers in ((over, {}), (gzip.compress(over), coding)):
        answer = api().post(BATCH, data=raw, content_type=JSON, headers=headers)
        refused(answer, 413, "body-too-large")
