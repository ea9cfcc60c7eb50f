"""Bodies and answers: in pieces, within memory, at the pace of slow callers; idle connections."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from app.lib.fair_shares import NoShare, Shares
from app.lib.gateway import gateway as gateway_module
from app.lib.gateway.answers import PIECE
from app.lib.gateway.connections import Awaited, superfluous
from app.lib.gateway.gateway import REFUSED
from app.lib.gateway.requests import SMALL, BodyCutShort, BodyTooSlow, environ
from tests.unit.http.gateway.exchange import NO_TIME, Environ, Exchange, gateway, serve, served

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


class Stream:
    """An answer of pieces, which knows how many were made, and when it was closed."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = iter(pieces)
        self.made = 0
        self.closed = False

    def __call__(self, made: Environ, start: Callable[..., Any]) -> "Stream":
        start("200 OK", [])
        return self

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.made += 1
            yield piece

    def close(self) -> None:
        """Hear that the answer has been sent or given up."""
        self.closed = True


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b""],
        [b"abc", b"", b"def"],
        [b"x" * PIECE],
        [b"x" * (PIECE + 1)],
        [b"x" * (3 * PIECE)],
        [b"x" * PIECE, b"y" * PIECE, b"z"],
        [b"x" * 1_000] * 1_000,
    ],
)
def test_an_answer_leaves_whole_and_in_pieces_that_are_not_large(pieces: list[bytes]) -> None:
    stream = Stream(*pieces)
    exchange = served(Exchange(), stream)
    assert exchange.body == b"".join(pieces)
    assert all(len(message["body"]) <= PIECE for message in exchange.sent[1:])
    more = [message.get("more_body", False) for message in exchange.sent[1:]]
    assert more == [True] * (len(more) - 1) + [False]
    assert stream.closed


def test_a_reader_that_reads_nothing_has_nothing_more_made_and_is_given_up() -> None:
    stream = Stream(*[b"x" * PIECE] * 10)
    exchange = Exchange()
    exchange.reads = False
    served(exchange, stream, answer=NO_TIME)
    assert stream.made == 1
    assert stream.closed


async def test_readers_that_read_nothing_hold_no_thread() -> None:
    def stream(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [])
        return iter([b"x" * PIECE] * 10)

    one = gateway(stream)
    slow = [Exchange() for _ in range(20)]
    for exchange in slow:
        exchange.reads = False
    tasks = [asyncio.create_task(serve(one, exchange)) for exchange in slow]
    quick = Exchange()
    await serve(one, quick)
    assert len(quick.body) == 10 * PIECE
    assert not any(task.done() for task in tasks)


async def test_a_refusal_for_want_of_room_is_held_back_and_holds_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "REFUSED_SECONDS", 600)

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if made["PATH_INFO"] == "/refused":
            made[REFUSED] = True
        start("200 OK", [])
        return [b"ok"]

    one = gateway(application)
    refused = asyncio.create_task(serve(one, Exchange(path="/refused")))
    other = Exchange()
    await serve(one, other)
    assert other.body == b"ok"
    assert not refused.done()


def waiting(whose: str, since: list[int], *, answered: bool = False) -> list[Awaited]:
    """Return connections of one client, named by when they began to wait."""
    return [Awaited(answered, float(at), (whose, str(at)), whose) for at in since]


def test_a_client_keeps_the_newest_of_its_share() -> None:
    awaited = waiting("a", [3, 1, 2, 4]) + waiting("b", [0])
    assert superfluous(awaited, 2, 100) == [("a", "1"), ("a", "2")]
    assert superfluous(awaited, 4, 100) == []


def test_many_clients_leave_places_in_all() -> None:
    awaited = [each for at in range(10) for each in waiting(f"client {at}", [at])]
    assert superfluous(awaited, 2, 7) == [(f"client {at}", str(at)) for at in range(3)]


def test_what_one_client_has_too_many_of_spares_the_others() -> None:
    awaited = waiting("loud", list(range(10, 30))) + waiting("quiet", [1])
    hung_up = superfluous(awaited, 4, 5)
    assert len(hung_up) == 16
    assert {host for host, _ in hung_up} == {"loud"}


def test_connections_that_were_answered_outlast_those_that_never_asked() -> None:
    used = waiting("a", [1, 2], answered=True)
    assert superfluous(waiting("a", [3, 4, 5]) + used, 3, 100) == [("a", "3"), ("a", "4")]
