"""The history of a webhook: lists, filters, single deliveries, and the catch-up feed."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import pytest

from app.core.delivery.history import catch_up
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import (
    NOBODY,
    finding_of,
    make_finding,
    make_session,
    pin_of,
    pointers,
    refused,
)
from tests.support.callers.sending import (
    TWO_TRIES,
    Worker,
    history,
    make_findings,
    make_webhook,
)


def deliveries(webhook: dict[str, Any], query: str = "") -> str:
    return f"/v1/webhooks/{webhook['id']}/deliveries{query}"


# The list


def test_a_delivery_is_listed_before_anything_was_tried(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    make_findings(api(), 1)

    (row,) = history(api(), webhook)

    assert row["webhook_id"] == webhook["id"]
    assert row["event_type"] == "finding.created"
    assert (row["kind"], row["status"], row["sequence"]) == ("event", "pending", None)
    assert (row["attempt_count"], row["last_attempt"], row["finished_at"]) == (0, None, None)
    assert row["next_attempt_at"] is not None


def test_a_list_shows_each_delivery_s_last_attempt(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, 500, (0.0, 0.0), error="first")
    worker.send(webhook, 418, (0.0, 0.0), limit=1, error="second")

    rows = sorted(history(api(), webhook), key=lambda row: row["attempt_count"])

    assert [row["status"] for row in rows] == ["retrying", "failed"]
    assert [row["attempt_count"] for row in rows] == [1, 2]
    assert [row["last_attempt"]["number"] for row in rows] == [1, 2]
    assert [row["last_attempt"]["status"] for row in rows] == [500, 418]
    assert [row["last_attempt"]["error"] for row in rows] == ["first", "second"]
    assert rows[0]["next_attempt_at"] is not None
    assert (rows[1]["next_attempt_at"], rows[1]["finished_at"] is None) == (None, False)


def test_pages_hold_every_delivery_once_while_others_are_made(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    make_findings(api(), 7)
    expected = [row["id"] for row in history(api(), webhook)]

    seen, query = [], "?limit=3"
    while query:
        answer = api().get(deliveries(webhook, query))
        seen += [row["id"] for row in answer.json["data"]]
        cursor = answer.json["next_cursor"]
        query = f"?limit=3&cursor={cursor}" if cursor else ""
        make_findings(api(), 1)

    assert seen == expected


def test_a_lease_that_has_run_out_reads_as_waiting_and_not_as_sending(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, 500, (0.0, 0.0), limit=1)
    worker.claim(webhook)
    assert [row["status"] for row in history(api(), webhook)] == ["sending", "sending"]
    assert all(row["next_attempt_at"] is None for row in history(api(), webhook))

    worker.run("UPDATE deliveries SET next_attempt_at = clock_timestamp() - interval '1 s'")

    assert {row["status"] for row in history(api(), webhook)} == {"pending", "retrying"}
    assert all(row["next_attempt_at"] for row in history(api(), webhook))
    assert history(api(), webhook, "status=sending") == []
    assert len(history(api(), webhook, "status=pending")) == 1
    assert len(history(api(), webhook, "status=retrying")) == 1


@pytest.fixture
def mixed(api: ApiOf, webhook: dict[str, Any], worker: Worker) -> dict[str, Any]:
    """A webhook with a delivery in each of five states, and a session's among them."""
    session = make_session(api())
    make_findings(api(), 1)
    worker.send(webhook, 200)
    make_finding(api(), session["id"])
    worker.send(webhook, 500)
    make_finding(api(), session["id"])
    worker.send(webhook, 500, TWO_TRIES)
    api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})
    return webhook


@pytest.mark.parametrize(
    ("query", "statuses"),
    [
        ("status=succeeded", ["succeeded"]),
        ("status=failed", ["failed"]),
        ("status=failed&status=succeeded", ["failed", "succeeded"]),
        ("status=pending,retrying", ["pending", "retrying"]),
        ("status=pending,failed", ["pending", "failed"]),
        ("status=cancelled", []),
        ("event_type=session.completed", ["pending"]),
        ("event_type=webhook.test", []),
        ("event_type=finding.created&status=succeeded", ["succeeded"]),
    ],
)
def test_filters_keep_what_fits_all_of_them(
    api: ApiOf, mixed: dict[str, Any], query: str, statuses: list[str]
) -> None:
    assert [row["status"] for row in history(api(), mixed, query)] == statuses


def test_since_is_included_and_until_is_not(api: ApiOf, mixed: dict[str, Any]) -> None:
    rows = history(api(), mixed)
    second = rows[2]["created_at"]

    assert history(api(), mixed, f"since={second}") == rows[:3]
    assert history(api(), mixed, f"until={second}") == rows[3:]
    assert history(api(), mixed, f"since={second}&until={second}") == []
    assert history(api(), mixed, "since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z") == rows
    assert history(api(), mixed, "until=0001-01-01T00:00:00Z") == []
    assert history(api(), mixed, "since=9999-12-31T23:59:59Z") == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("status=lost", "/status/0"),
        ("status=", "/status/0"),
        ("status=failed,lost", "/status/1"),
        ("status=" + ",".join(["failed"] * 7), "/status"),
        ("event_type=finding.deleted", "/event_type"),
        ("since=yesterday", "/since"),
        ("limit=0", "/limit"),
        ("limit=201", "/limit"),
        ("limit=1e1", "/limit"),
        ("cursor=abc", "/cursor"),
        ("after=-1", "/after"),
        ("after=01", "/after"),
        ("after=9007199254740992", "/after"),
        ("after=" + "9" * 40, "/after"),
        ("after=", "/after"),
        ("after=0&status=failed", "/status"),
        ("after=0&since=2026-01-01T00:00:00Z", "/since"),
        ("after=0&cursor=abc", "/cursor"),
        ("order=asc", "/order"),
    ],
)
def test_a_wrong_query_is_refused_and_named(
    api: ApiOf, webhook: dict[str, Any], query: str, pointer: str
) -> None:
    assert pointers(api().get(deliveries(webhook, f"?{query}"))) == [pointer]


def test_a_cursor_of_another_webhook_or_filter_is_refused(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    other = make_webhook(api())
    make_findings(api(), 2)
    cursor = api().get(deliveries(webhook, "?limit=1")).json["next_cursor"]

    for path in (
        deliveries(other, f"?limit=1&cursor={cursor}"),
        deliveries(webhook, f"?limit=1&status=pending&cursor={cursor}"),
    ):
        assert pointers(api().get(path)) == ["/cursor"]


# One delivery


def test_a_delivery_shows_its_payload_and_every_attempt(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    (finding,) = make_findings(api(), 1)
    worker.send(webhook, None, (0.0, 0.0), error="The answer took longer than 15 s.")
    worker.send(
        webhook,
        200,
        dns_ms=1.5,
        connect_ms=2.25,
        first_byte_ms=3.5,
        total_ms=8.0,
        response_headers=json.dumps([["content-type", "text/plain"], ["x", "1"], ["x", "2"]]),
        response_body=b"thank you \xe2\x9c\x93",
    )
    (row,) = history(api(), webhook)

    detail = api().get(deliveries(webhook, f"/{row['id']}")).json

    assert {name: detail[name] for name in row} == row
    assert detail["payload"]["data"] == finding
    first, second = detail["attempts"]
    assert (first["number"], first["status"], first["body"]) == (1, None, None)
    assert first["error"] == "The answer took longer than 15 s."
    assert first["headers"] is None
    assert second["timings"] == {
        "dns": 1.5,
        "connect": 2.25,
        "tls": None,
        "first_byte": 3.5,
        "total": 8.0,
    }
    assert (second["number"], second["status"], second["outcome"]) == (2, 200, "succeeded")
    assert second["headers"] == [["content-type", "text/plain"], ["x", "1"], ["x", "2"]]
    assert (second["body"], second["body_base64"]) == ("thank you ✓", None)


@pytest.mark.parametrize("body", [b"\xff\xfe\x00", b"cut in a \xe2\x9c", b"\xed\xa0\x80"])
def test_an_answer_that_is_not_utf8_is_shown_and_kept_exactly(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, body: bytes
) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 500, response_body=body)
    (row,) = history(api(), webhook)

    (attempt,) = api().get(deliveries(webhook, f"/{row['id']}")).json["attempts"]

    assert "\ufffd" in attempt["body"]
    assert base64.b64decode(attempt["body_base64"]) == body


def test_an_answer_with_a_nul_is_text_all_the_same(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 500, response_body=b"a\x00b")
    (row,) = history(api(), webhook)

    (attempt,) = api().get(deliveries(webhook, f"/{row['id']}")).json["attempts"]

    assert (attempt["body"], attempt["body_base64"]) == ("a\x00b", None)


def test_a_delivery_is_found_under_its_own_webhook_alone(
    api: ApiOf, webhook: dict[str, Any], other_tenant: FreshTenant
) -> None:
    other = make_webhook(api())
    make_findings(api(), 1)
    stranger = api(other_tenant.root_key)
    foreign_webhook = make_webhook(stranger)
    make_findings(stranger, 1)
    (row,), (foreign,) = history(api(), webhook), history(stranger, foreign_webhook)

    answers = [
        refused(api().get(deliveries(webhook, f"/{each}")), 404, "not-found")
        for each in (foreign["id"], history(api(), other)[0]["id"], f"dlv_{NOBODY}", "dlv_1")
    ]
    assert all(answer == answers[0] for answer in answers)
    foreign_path = deliveries(foreign_webhook)
    refused(api().get(foreign_path), 404, "not-found")
    refused(api().get(f"{foreign_path}?after=0"), 404, "not-found")
    refused(api().get(f"{foreign_path}/{row['id']}"), 404, "not-found")


# The catch-up feed


def test_the_feed_gives_events_in_order_with_their_payloads(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    findings = make_findings(api(), 3)

    feed = api().get(deliveries(webhook, "?after=0"))

    rows = feed.json["data"]
    assert [row["sequence"] for row in rows] == [1, 2, 3]
    assert {row["payload"]["data"]["id"] for row in rows} == {each["id"] for each in findings}
    assert all(row["payload"]["id"] == row["event_id"] for row in rows)
    assert (feed.json["next_cursor"], feed.json["next_after"]) == (None, 3)
    assert "after=3" in feed.headers["Link"]


def test_whoever_follows_next_after_gets_every_event_once(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    make_findings(api(), 23)

    seen, after = [], 0
    while data := (page := api().get(deliveries(webhook, f"?after={after}&limit=5")).json)["data"]:
        seen += [row["sequence"] for row in data]
        after = page["next_after"]

    assert seen == list(range(1, 24))


@pytest.mark.parametrize("after", [2, 3, 2**53 - 1])
def test_beyond_the_newest_the_feed_is_empty(
    api: ApiOf, webhook: dict[str, Any], after: int
) -> None:
    make_findings(api(), 2)

    feed = api().get(deliveries(webhook, f"?after={after}"))

    assert feed.json == {"data": [], "next_cursor": None, "next_after": after}
    assert "Link" not in feed.headers


def test_a_webhook_that_never_had_an_event_has_an_empty_feed(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    assert api().get(deliveries(webhook, "?after=0")).json["data"] == []


def test_replays_and_tests_are_not_in_the_feed(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, 500)
    for row in history(api(), webhook):
        api().post(deliveries(webhook, f"/{row['id']}/replay"))
    api().post(f"/v1/webhooks/{webhook['id']}/test")

    rows = history(api(), webhook, "after=0")

    assert [(row["sequence"], row["kind"]) for row in rows] == [(1, "event"), (2, "event")]


def test_more_events_than_are_numbered_at_once_are_all_found(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    make_findings(api(), 1000)
    make_findings(api(), 300)

    seen, after = 0, 0
    while data := history(api(), webhook, f"after={after}&limit=200"):
        assert [row["sequence"] for row in data] == list(range(after + 1, after + 1 + len(data)))
        seen, after = seen + len(data), after + len(data)

    assert seen == 1300


def test_a_reader_beside_writers_misses_nothing(api: ApiOf, webhook: dict[str, Any]) -> None:
    session_id = make_session(api())["id"]
    writers = [api() for _ in range(4)]

    def write(one: Api) -> None:
        for _ in range(15):
            answer = one.post("/v1/findings", finding_of(session_id))
            assert answer.status_code == 201

    seen: list[int] = []
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(write, one) for one in writers]
        while len(seen) < 60:
            done = all(each.done() for each in running)
            data = history(api(), webhook, f"after={len(seen)}&limit=7")
            seen += [row["sequence"] for row in data]
            assert data or not done, "events are missing"
        for each in running:
            each.result()

    assert seen == list(range(1, 61))


def test_events_older_than_the_history_kept_are_gone_and_the_answer_says_where_to_go_on(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 5)
    worker.send(webhook, 200)
    worker.run("DELETE FROM deliveries WHERE sequence <= 2")

    for after in (0, 1):
        answer = api().get(deliveries(webhook, f"?after={after}"))
        assert refused(answer, 410, "history-pruned")["first_available"] == 3
    assert [row["sequence"] for row in history(api(), webhook, "after=2")] == [3, 4, 5]


def test_when_all_history_is_gone_the_feed_goes_on_with_what_comes_next(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 5)
    worker.send(webhook, 200)
    worker.run("DELETE FROM deliveries")

    answer = api().get(deliveries(webhook, "?after=4"))
    assert refused(answer, 410, "history-pruned")["first_available"] == 6
    assert history(api(), webhook, "after=5") == []
    make_findings(api(), 1)
    assert [row["sequence"] for row in history(api(), webhook, "after=5")] == [6]


def test_the_feed_never_steps_over_a_number_that_is_gone(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 5)
    worker.send(webhook, 200)
    worker.run("DELETE FROM deliveries WHERE sequence = 3")

    assert [row["sequence"] for row in history(api(), webhook, "after=0")] == [1, 2]
    answer = api().get(deliveries(webhook, "?after=2"))
    assert refused(answer, 410, "history-pruned")["first_available"] == 4


def test_a_page_of_large_events_ends_before_it_is_too_large(
    api: ApiOf, webhook: dict[str, Any]
) -> None:
    session_id = make_session(api())["id"]
    for _ in range(26):
        make_finding(api(), session_id, data="x" * 200_000)

    first = api().get(deliveries(webhook, "?after=0"))
    seen = [row["sequence"] for row in first.json["data"]]
    assert 1 < len(seen) < 26
    assert len(first.data) < catch_up.MOST_PAYLOAD + 2**20
    seen += [row["sequence"] for row in history(api(), webhook, f"after={seen[-1]}")]
    assert seen == list(range(1, 27))


def test_a_read_key_may_read_all_of_it_and_a_pinned_key_none(
    api: ApiOf, webhook: dict[str, Any], mint: Mint
) -> None:
    make_findings(api(), 1)
    (row,) = history(api(), webhook)
    reader, pinned = api(mint("read")), api(mint("admin", pin_of(make_session(api()))))
    base = f"/v1/webhooks/{webhook['id']}"

    for path in (
        f"{base}/deliveries",
        f"{base}/deliveries?after=0",
        f"{base}/deliveries/{row['id']}",
        f"{base}/decisions?event_id={row['event_id']}",
        f"{base}/accounting",
    ):
        assert reader.get(path).status_code == 200
        refused(pinned.get(path), 403, "pinned-key")


def test_answers_with_everything_in_them_fit_the_served_document(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, None, (0.0, 0.0), limit=1, error="The name could not be resolved.")
    worker.send(webhook, 500, TWO_TRIES, response_body=b"\xff", response_headers='[["a","b"]]')
    base = f"/v1/webhooks/{webhook['id']}"
    row = history(api(), webhook)[0]
    api().post(f"{base}/deliveries/{row['id']}/replay")
    document = api().get("/openapi.json").json

    for path, name in (
        (f"{base}/deliveries", "DeliveryPage"),
        (f"{base}/deliveries?after=0", "DeliveryPage"),
        (f"{base}/deliveries/{row['id']}", "DeliveryDetail"),
        (f"{base}/decisions?event_id={row['event_id']}", "Decision"),
        (f"/v1/events/{row['event_id']}", "Event"),
        (f"{base}/accounting", "Accounting"),
        (base, "Webhook"),
        ("/v1/webhooks", "WebhookPage"),
        ("/v1/event-types", "EventTypePage"),
    ):
        schema = {
            "$ref": f"#/components/schemas/{name}",
            "components": document["components"],
        }
        validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
        validator.validate(api().get(path).json)
