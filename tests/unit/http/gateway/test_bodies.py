"""Request bodies: small, late, broken off and refused."""

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from app.lib.fair_shares import NoShare, Shares
from app.lib.gateway.requests import SMALL, BodyCutShort, BodyTooSlow, environ
from tests.unit.http.gateway.exchange import NO_TIME, Environ, Exchange, served

LARGE = SMALL + 1


def echo(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with the body; an error is named."""
    try:
        body = made["wsgi.input"].read()
    except (BodyTooSlow, BodyCutShort, NoShare) as error:
        start("400 Bad Request", [])
        return [type(error).__name__.encode()]
    start("200 OK", [])
    return [body]


def test_the_environ_says_what_the_request_says() -> None:
    exchange = Exchange(
        "POST",
        "/a%2Fb/%C3%BC",
        (b"content-type", b"text/plain"),
        (b"content-length", b"3"),
        (b"accept", b"a"),
        (b"accept", b"b"),
        (b"x-api-key", b"one"),
        (b"x_api_key", b"another"),
    )
    made = environ(exchange.scope, None)
    assert made["REQUEST_METHOD"] == "POST"
    assert made["PATH_INFO"].encode("latin-1").decode() == "/a/b/ü"
    assert made["QUERY_STRING"] == "a=%20b"
    assert made["CONTENT_TYPE"] == "text/plain"
    assert made["CONTENT_LENGTH"] == "3"
    assert made["HTTP_ACCEPT"] == "a,b"
    assert made["HTTP_X_API_KEY"] == "one"
    assert made["REMOTE_ADDR"] == "127.0.0.1"


def test_a_small_body_is_there_when_the_application_is_called() -> None:
    sent = Exchange("POST", "/", (b"content-length", b"6")).with_body(b"abc", b"def")
    assert served(sent, echo).body == b"abcdef"


@pytest.mark.parametrize(
    "header",
    [
        (b"content-length", str(LARGE).encode()),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
    ],
)
def test_a_long_body_is_read_whole(header: tuple[bytes, bytes]) -> None:
    sent = Exchange("POST", "/", header).with_body(b"x" * LARGE)
    assert served(sent, echo).body == b"x" * LARGE


@pytest.mark.parametrize("most", [0, LARGE - 1], ids=["of nobody", "too long"])
def test_a_long_body_that_is_refused_is_not_read(most: int) -> None:
    sent = Exchange("POST", "/", (b"content-length", str(LARGE).encode()))
    assert served(sent, echo, most=most).body == b"BodyCutShort"
    assert sent.asked == 0


def test_a_body_is_read_no_further_than_it_is_of_use() -> None:
    sent = Exchange("POST", "/", (b"transfer-encoding", b"chunked"))
    sent.with_body(*[b"x" * LARGE] * 100)
    assert 10 * LARGE < len(served(sent, echo, most=10 * LARGE).body) <= 11 * LARGE


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_body_that_stops_is_given_up_and_its_connection_closed(size: int) -> None:
    sent = Exchange("POST", "/", (b"content-length", str(size).encode()))
    sent.with_body(b"x", ends=False)
    assert served(sent, echo, body=NO_TIME).body == b"BodyTooSlow"
    assert (b"connection", b"close") in sent.sent[0]["headers"]


def test_a_body_that_breaks_off_is_told_from_a_whole_one() -> None:
    sent = Exchange("POST", "/", (b"content-length", b"10")).with_body(b"x", ends=False)
    sent.arrived.append({"type": "http.disconnect"})
    assert served(sent, echo).body == b"BodyCutShort"


def test_a_late_body_without_memory_is_refused_unread() -> None:
    memory = Shares(LARGE, LARGE)
    sent = Exchange("POST", "/", (b"content-length", str(LARGE).encode()))
    with memory.held("another", LARGE):
        assert served(sent, echo, memory=memory).body == b"NoShare"
    assert sent.asked == 0
    sent = Exchange("POST", "/", (b"content-length", str(LARGE).encode())).with_body(b"x" * LARGE)
    assert served(sent, echo, memory=memory).status == 200
    with memory.held("everything again", LARGE):
        pass


@pytest.mark.parametrize(
    ("size", "memory"), [(10, 2**30), (LARGE, 2**30), (LARGE, 1)], ids=["small", "late", "refused"]
)
def test_nothing_holds_the_connection_of_a_body_that_failed(size: int, memory: int) -> None:
    sent = Exchange("POST", "/", (b"content-length", str(size).encode()))
    connection = weakref.ref(sent.with_body(b"x", ends=False))
    # The server closes it when it is let go: that must not wait for a collection.
    gc.disable()
    try:
        served(sent, echo, body=NO_TIME, memory=Shares(memory, memory))
        assert sent.status == 400
        del sent
        assert connection() is None
    finally:
        gc.enable()
