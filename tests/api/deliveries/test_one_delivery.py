"""One delivery: its payload, and each attempt with its answer."""

import base64
import gzip
import json
from typing import Any

import pytest

from tests.support.callers.api import ApiOf
from tests.support.callers.sending import Worker, deliveries, history, make_findings


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
