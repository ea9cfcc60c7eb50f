"""Requests and answers on the wire: chunks, HEAD, ETags, odd spellings."""

import socket

import pytest

from tests.e2e.harness.web import JSON, SETTINGS, Web, everything, large_record, request
from tests.support.callers.api import FreshTenant

pytestmark = pytest.mark.stacks


@pytest.mark.parametrize("chunks", [b"5\r\n12345\r\nzz\r\n", b"-1\r\n", b"5\r\n123"])
def test_chunks_that_cannot_be_read_are_refused(
    patient: Web, tenant: FreshTenant, chunks: bytes
) -> None:
    begun = request("POST", "/v1/agents", JSON, "Transfer-Encoding: chunked", key=tenant.root_key)
    with patient.connection(begun + chunks) as connection:
        connection.shutdown(socket.SHUT_WR)
        answered = everything(connection)
    assert b"201" not in answered[:12]


def test_a_head_has_the_headers_and_no_body(patient: Web, tenant: FreshTenant) -> None:
    caller = patient.caller(tenant.root_key)
    path = large_record(caller)
    whole = caller.ask("GET", f"{path}/bundle")
    head = caller.ask("HEAD", f"{path}/bundle")
    assert head.headers["Content-Length"] == str(len(whole.content))
    assert head.headers["ETag"] == whole.headers["ETag"]
    assert head.content == b""


def test_the_same_rendering_is_answered_to_all_and_304_to_those_who_have_it(
    patient: Web, tenant: FreshTenant
) -> None:
    caller = patient.caller(tenant.root_key)
    path = large_record(caller)
    for export in ("prov.json", "otlp-logs.json", "otlp-traces.json"):
        first, again = (caller.ask("GET", f"{path}/{export}") for _ in range(2))
        assert first.content == again.content
        assert first.headers["ETag"] == again.headers["ETag"]
        assert not first.headers["ETag"].startswith("W/")
        has_it = {"If-None-Match": first.headers["ETag"]}
        assert caller.ask("GET", f"{path}/{export}", headers=has_it).status_code == 304


@pytest.mark.parametrize(
    ("method", "path", "heads", "status"),
    [
        ("GET", SETTINGS, ["x-api-key: {key}"], 200),
        ("GET", SETTINGS, ["x_api_key: {key}"], 401),
        ("GET", SETTINGS, ["X_Api-Key: {key}"], 401),
        ("GET", SETTINGS, ["x-api-key: svc_other", "x_api_key: {key}"], 401),
        ("GET", SETTINGS, ["x-api-key: {key}", "x_api_key: svc_other"], 200),
        ("GET", SETTINGS, ["x-api-key: {key}", "x-api-key: svc_other"], 401),
        ("GET", SETTINGS, ["x-api-key: {key}", "Authorization: Bearer svc_other"], 400),
        ("GET", "//v1/agents", ["x-api-key: {key}"], 404),
        ("GET", "http://records.test//v1/agents", ["x-api-key: {key}"], 404),
        ("GET", "/%2Fv1/agents", ["x-api-key: {key}"], 404),
        ("GET", "/v1%2fagents", ["x-api-key: {key}"], 404),
        ("GET", "/v1/agents%2F", ["x-api-key: {key}"], 404),
        ("GET", "/v1/agents?r=%2F", ["x-api-key: {key}"], 422),
        ("GET", "/v1/%61gents", ["x-api-key: {key}"], 200),
        ("GET", "//healthz", [], 404),
        ("DELETE", "/v1/keys/self", ["x-api-key: {key}"], 405),
        ("POST", "/v1/agents", ["x-api-key: {key}", JSON, "Content-Encoding: gzip"], 415),
        (
            "POST",
            "/v1/agents",
            ["x-api-key: {key}", JSON, "Content-Encoding: identity", "Content-Encoding: gzip"],
            415,
        ),
        ("POST", "/v1/agents", ["x-api-key: {key}", JSON, "Content_Encoding: gzip"], 201),
    ],
)
def test_a_request_is_read_as_it_was_written(
    patient: Web, tenant: FreshTenant, method: str, path: str, heads: list[str], status: int
) -> None:
    body = b'{"name": "a"}' if method == "POST" else b""
    heads = [*heads, f"Content-Length: {len(body)}", "Connection: close"]
    sent = request(method, path, *(head.format(key=tenant.root_key) for head in heads))
    with patient.connection(sent + body) as connection:
        answered = everything(connection)
    assert answered.startswith(f"HTTP/1.1 {status} ".encode()), answered


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        ("1.1", ["records.test"], 200),
        ("1.1", ["records.test:443"], 200),
        ("1.1", ["[::1]:8000"], 200),
        ("1.0", [], 200),
        ("1.1", [], 400),
        ("1.1", [""], 400),
        ("1.1", ["records.test", "records.test"], 400),
        ("1.1", ["records.test", "evil.test"], 400),
        ("1.0", ["records.test", "evil.test"], 400),
        ("1.1", ["records.test, evil.test"], 400),
        ("1.1", ["records.test/x"], 400),
        ("1.1", ["me@records.test"], 400),
    ],
)
def test_a_request_has_one_host(patient: Web, version: str, hosts: list[str], status: int) -> None:
    lines = [f"GET /verify.py HTTP/{version}", *(f"Host: {each}" for each in hosts)]
    sent = "".join(f"{each}\r\n" for each in [*lines, "Connection: close", ""]).encode()
    with patient.connection(sent) as connection:
        answered = everything(connection)
    assert answered[8:].startswith(f" {status} ".encode()), answered[:200]
    if status == 400:
        assert b"/problems/bad-request" in answered
        assert b"Host" in answered.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("head", "status"),
    [("x-large: " + "a" * 15_000, 200), ("x-large: " + "a" * 60_000, 431), ("a" * 200_000, 431)],
    ids=["most that is taken", "within the buffer", "beyond it"],
)
def test_a_head_that_is_too_large_is_431(patient: Web, head: str, status: int) -> None:
    with patient.connection(request("GET", "/healthz", "Connection: close", head)) as connection:
        assert everything(connection).startswith(b"HTTP/1.1 %d " % status)
