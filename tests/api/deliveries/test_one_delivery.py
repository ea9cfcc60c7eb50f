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


def test_utf8_that_was_cut_inside_a_character_is_text(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 500, response_body=("x" + "ü" * 4096).encode()[:4096])
    (row,) = history(api(), webhook)

    (attempt,) = api().get(deliveries(webhook, f"/{row['id']}")).json["attempts"]

    assert (attempt["body"], attempt["body_base64"]) == ("x" + "ü" * 2047, None)


@pytest.mark.parametrize("kept", [4096, 40])
@pytest.mark.parametrize("text", ["thank you ✓", "✓" * 10_000_000])
def test_an_answer_in_gzip_is_shown_unpacked(
    api: ApiOf, webhook: dict[str, Any], worker: Worker, text: str, kept: int
) -> None:
    make_findings(api(), 1)
    worker.send(
        webhook,
        500,
        response_headers=json.dumps([["Content-Encoding", "GZIP"]]),
        response_body=gzip.compress(text.encode())[:kept],
        error="the body of the answer had not ended after 1 s",
    )
    (row,) = history(api(), webhook)

    (attempt,) = api().get(deliveries(webhook, f"/{row['id']}")).json["attempts"]

    assert text.startswith(attempt["body"])
    assert len(attempt["body"].encode()) <= 4096
    assert attempt["body"] or kept < 4096
    assert attempt["body_base64"] is None


def test_what_only_says_that_it_is_gzip_is_shown_as_it_is(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 1)
    headers = json.dumps([["content-encoding", "gzip"]])
    worker.send(webhook, 500, response_headers=headers, response_body=b"plain")
    (row,) = history(api(), webhook)

    (attempt,) = api().get(deliveries(webhook, f"/{row['id']}")).json["attempts"]

    assert (attempt["body"], attempt["body_base64"]) == ("plain", None)


def test_an_answer_with_a_nul_is_text_all_the_same(
    api: ApiOf, webhook: dict[str, Any], worker: Worker
) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 500, response_body=b"a\x00b")
    (row,) = history(api(), webhook)

    (attempt,) = api().get(deliveries(webhook, f"/{row['id']}")).json["attempts"]

    assert (attempt["body"], attempt["body_base64"]) == ("a\x00b", None)
