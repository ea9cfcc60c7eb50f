"""Bodies are read strictly, whatever the route: the bytes that the parser's own tests refuse."""

import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.callers.api import ApiOf
from tests.support.callers.making import finding_of, make_session, pointers, refused
from tests.support.callers.refusals import REFUSED

JSON = "application/json"
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("raw", "status", "pointer"),
    [pytest.param(raw, status, pointer, id=name) for name, raw, status, pointer in REFUSED],
)
def test_these_bytes_are_refused_with_a_pointer_to_the_place(
    api: ApiOf, raw: bytes, status: int, pointer: str | None
) -> None:
    refused = api().post("/v1/agents", data=raw, content_type=JSON)

    assert refused.status_code == status
    assert refused.mimetype == "application/problem+json"
    if pointer is not None:
        assert refused.json["errors"][0]["pointer"] == pointer


def test_these_bytes_are_refused_by_routes_that_take_no_body_too(api: ApiOf) -> None:
    for name, raw, status, _ in REFUSED:
        if raw:
            refused = api().delete(f"/v1/keys/key_{'0' * 32}", data=raw, content_type=JSON)
            assert refused.status_code == status, name


@pytest.mark.parametrize("raw", [b"[]", b"null", b'"a"', b"1", b"true", b'[{"name":"n"}]'])
def test_a_body_that_is_no_object_is_refused(api: ApiOf, raw: bytes) -> None:
    refused = api().post("/v1/agents", data=raw, content_type=JSON)

    assert refused.status_code == 422
    assert refused.json["errors"] == [{"pointer": "", "detail": "Send a JSON object."}]


@pytest.mark.parametrize(
    "content_type",
    [
        *(None, "", "text/plain", "text/json", "application/jsonp", "application/ld+json"),
        *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
        *("application/json; charset=utf-16", "application/json; charset=latin-1"),
    ],
)
def test_a_body_is_declared_as_json_in_utf_8(api: ApiOf, content_type: str | None) -> None:
    refused = api().post("/v1/agents", data=b'{"name":"n"}', content_type=content_type)

    assert refused.status_code == 415
    assert "application/json" in refused.json["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        *({"Content-Type": each} for each in (JSON, "Application/JSON", f"{JSON}; charset=utf-8")),
        {"Content-Type": f'{JSON}; charset="UTF-8"'},
        {"Content-Type": JSON, "Content-Encoding": "Identity"},
    ],
)
def test_json_in_utf_8_is_accepted_however_that_is_said(
    api: ApiOf, headers: dict[str, str]
) -> None:
    assert api().post("/v1/agents", data=b'{"name":"n"}', headers=headers).status_code == 201


BATCH = "/v1/findings/batch"


def packed(body: bytes, coding: str = "gzip") -> dict[str, Any]:
    return {"data": body, "content_type": JSON, "headers": {"Content-Encoding": coding}}


@pytest.fixture
def session_id(api: ApiOf) -> str:
    made: str = make_session(api())["id"]
    return made


def findings_of(session_id: str, size: int = 0) -> bytes:
    return json.dumps({"findings": [finding_of(session_id)]}).encode().ljust(size)


@pytest.mark.parametrize("coding", ["gzip", "GZip", "x-gzip"])
@pytest.mark.parametrize("size", [0, 64 * 1024 + 1, MIB])
def test_a_batch_may_come_as_gzip_of_up_to_its_limit(
    api: ApiOf, session_id: str, coding: str, size: int
) -> None:
    body = gzip.compress(findings_of(session_id, size))

    made = api().post(BATCH, **packed(body, coding))

    assert made.status_code == 201
    assert made.json["data"][0]["session_id"] == session_id


@pytest.mark.parametrize("size", [MIB + 1, 100 * MIB])
def test_what_unpacks_to_more_than_the_limit_is_413_and_costs_no_more_than_it(
    api: ApiOf, session_id: str, size: int
) -> None:
    bomb = packed(gzip.compress(findings_of(session_id, size)))
    tracemalloc.start()
    try:
        refused = api().post(BATCH, **bomb)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert refused.status_code == 413
    assert refused.json["type"].endswith("/problems/body-too-large")
    assert most < 4 * MIB


def test_what_is_no_whole_gzip_is_400(api: ApiOf, session_id: str) -> None:
    whole = gzip.compress(findings_of(session_id))
    damaged = whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:]
    for body in (b"no gzip", whole[:-1], damaged, whole + whole, whole + b"\0"):
        refused = api().post(BATCH, **packed(body))
        assert refused.status_code == 400, body
        assert refused.json["type"].endswith("/problems/malformed-body")


@pytest.mark.parametrize(
    ("path", "codings", "taken"),
    [
        ("/v1/agents", ("gzip", "GZIP", "br", "deflate", "identity, gzip"), "identity"),
        (BATCH, ("br", "deflate", "zstd", "gzip, gzip", "identity, gzip"), "gzip, identity"),
    ],
)
def test_another_coding_is_415_and_told_which_are_taken(
    api: ApiOf, path: str, codings: tuple[str, ...], taken: str
) -> None:
    for coding in codings:
        refused = api().post(path, **packed(gzip.compress(b'{"name":"n"}'), coding))
        assert (refused.status_code, refused.headers["Accept-Encoding"]) == (415, taken)
        assert coding in refused.json["detail"]


def padded(size: int) -> bytes:
    body = json.dumps({"name": "n"}).encode()
    return body + b" " * (size - len(body))


def chunked(body: bytes) -> dict[str, Any]:
    """What a WSGI server hands on for a body that was sent in chunks, without its length."""
    return {
        "input_stream": io.BytesIO(body),
        "content_type": JSON,
        "environ_overrides": {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"},
    }


def test_a_body_has_1_mib_at_most_with_its_length_or_in_chunks(api: ApiOf) -> None:
    for size, status in ((20, 201), (MIB, 201), (MIB + 1, 413), (MIB + 2, 413), (3 * MIB, 413)):
        whole = {"data": padded(size), "content_type": JSON}
        for sent in (whole, chunked(padded(size))):
            answer = api().post("/v1/agents", **sent)
            assert answer.status_code == status, size
            assert status == 201 or answer.json["type"].endswith("/problems/body-too-large")


def test_a_route_without_a_body_takes_none_or_an_empty_object(api: ApiOf) -> None:
    path = f"/v1/keys/key_{'0' * 32}"

    assert api().delete(path).status_code == 404
    assert api().delete(path, data=b"{}", content_type=JSON).status_code == 404
    refused = api().delete(path, data=b'{"a":1}', content_type=JSON)
    assert refused.status_code == 422
    assert refused.json["errors"][0]["pointer"] == "/a"


def test_an_unknown_query_parameter_is_refused_on_every_route(api: ApiOf) -> None:
    for path in ("/v1/keys", "/v1/keys/self", "/v1/agents"):
        refused = api().get(f"{path}?limits=5&a~b/c=1")
        assert refused.status_code == 422, path
        assert [error["pointer"] for error in refused.json["errors"]] == ["/a~0b~1c", "/limits"]
        assert refused.json["errors"][0]["detail"].startswith("Query parameter")
    assert pointers(api().get("/v1/keys?limit=1&limit=2")) == ["/limit"]


def test_a_body_full_of_faults_is_answered_briefly(api: ApiOf) -> None:
    body = {f"field {number}": number for number in range(20_000)}

    refused = api().post("/v1/agents", body)

    assert refused.status_code == 422
    assert len(refused.json["errors"]) == 100


def test_the_key_is_checked_before_the_body(api: ApiOf, mint: Callable[..., str]) -> None:
    wrong = {"data": b"not json", "content_type": JSON}

    assert api(None).post("/v1/keys", **wrong).status_code == 401
    assert api(mint("read")).post("/v1/keys", **wrong).status_code == 403
    assert api().post("/v1/keys", **wrong).status_code == 400


def test_a_sender_that_falls_silent_on_a_server_that_reads_in_threads_is_408(api: ApiOf) -> None:
    class Silent(io.RawIOBase):
        seconds = 0.0

        def settimeout(self, seconds: float) -> None:
            self.seconds = seconds

        def readable(self) -> bool:
            return True

        def readinto(self, _: object) -> int:
            raise TimeoutError

    silent = Silent()
    given = {"gunicorn.socket": silent, "wsgi.input": silent, "CONTENT_LENGTH": "100"}
    answer = api().post("/v1/agents", content_type=JSON, environ_overrides=given)
    refused(answer, 408, "request-timeout")
    assert silent.seconds == 20
