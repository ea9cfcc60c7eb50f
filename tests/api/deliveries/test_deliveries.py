"""A webhook's history: its list, and one delivery with every attempt."""

import base64
import gzip
import json
from typing import Any

import jsonschema_rs
import pytest

from tests.support.callers.api import ApiOf
from tests.support.callers.making import pointers
from tests.support.callers.sending import (
    TWO_TRIES,
    Worker,
    deliveries,
    history,
    make_findings,
)


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


def test_a_lease_that_has_run_out_reads_as_waiting_and_not_as_sending(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 2)
    worker.send(webhook, 500, (0.0, 0.0), limit=1)
    worker.claim(webhook)
    assert [row["status"] for row in history(api(), webhook)] == ["sending", "sending"]
    assert all(row["next_attempt_at"] is None for row in history(api(), webhook))

    worker.run(
        "UPDATE open_deliveries SET lease_until = clock_timestamp() - interval '1 s'"
        " WHERE status = 'sending'"
    )

    assert {row["status"] for row in history(api(), webhook)} == {"pending", "retrying"}
    assert all(row["next_attempt_at"] for row in history(api(), webhook))
    assert history(api(), webhook, "status=sending") == []
    assert len(history(api(), webhook, "status=pending")) == 1
    assert len(history(api(), webhook, "status=retrying")) == 1


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


def shown(api: ApiOf, webhook: dict[str, Any], worker: Worker, **answer: Any) -> dict[str, Any]:
    """Return the one attempt of a delivery that was answered so."""
    make_findings(api(), 1)
    worker.send(webhook, 500, **answer)
    (row,) = history(api(), webhook)
    (attempt,) = api().get(deliveries(webhook, f"/{row['id']}")).json["attempts"]
    found: dict[str, Any] = attempt
    return found


@pytest.mark.parametrize("body", [b"\xff\xfe\x00", b"cut in a \xe2\x9c", b"\xed\xa0\x80"])
def test_an_answer_that_is_not_utf8_is_shown_and_kept_exactly(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, body: bytes
) -> None:
    attempt = shown(api, webhook, worker, response_body=body)
    assert "\ufffd" in attempt["body"]
    assert base64.b64decode(attempt["body_base64"]) == body


GZIP = json.dumps([["Content-Encoding", "GZIP"]])


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        (None, ("x" + "ü" * 4096).encode()[:4096], "x" + "ü" * 2047),
        (None, b"a\x00b", "a\x00b"),
        (GZIP, b"plain", "plain"),
    ],
    ids=["cut inside a character", "a nul", "no gzip though it says so"],
)
def test_an_answer_that_is_text_is_shown_as_text(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, headers: Any, body: bytes, text: str
) -> None:
    attempt = shown(api, webhook, worker, response_headers=headers, response_body=body)
    assert (attempt["body"], attempt["body_base64"]) == (text, None)


@pytest.mark.parametrize("kept", [4096, 40])
@pytest.mark.parametrize("text", ["thank you ✓", "✓" * 10_000_000])
def test_an_answer_in_gzip_is_shown_unpacked(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, text: str, kept: int
) -> None:
    packed = gzip.compress(text.encode())[:kept]
    error = "the body of the answer had not ended after 1 s"
    answer = {"response_headers": GZIP, "response_body": packed, "error": error}
    attempt = shown(api, webhook, worker, **answer)
    assert text.startswith(attempt["body"])
    assert len(attempt["body"].encode()) <= 4096
    assert attempt["body"] or kept < 4096
    assert attempt["body_base64"] is None
