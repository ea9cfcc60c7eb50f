"""A WSGI application behind the gateway: what it is given, what leaves, and who waits for whom."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

import pytest

from app.lib.fair_shares import NoShare, Shares
from app.lib.gateway.answers import PIECE
from app.lib.gateway.bodies import BodyCutShort, BodyTooSlow, Pace
from app.lib.gateway.environ import environ
from app.lib.gateway.gateway import (
    AGAIN,
    CAN_WAIT,
    READY,
    REFUSED,
    REFUSED_BEFORE,
    SMALL_BODY,
    Gateway,
    Limits,
)
from app.lib.gateway.streams import BodyWanted, Pending, Waiting

Environ = dict[str, Any]
LONG = Pace(seconds=600, rate=1)
# Over before anybody could send or read.
NO_TIME = Pace(seconds=0.001, rate=1e12)
LARGE = SMALL_BODY + 1


class Exchange:
    """One request as an ASGI server passes it on: what has come of its body, and what was sent."""

    def __init__(self, method: str = "GET", path: str = "/", *headers: tuple[bytes, bytes]) -> None:
        self.scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"a=%20b",
            "headers": list(headers),
            "server": ("127.0.0.1", "8000"),
            "client": ("127.0.0.1", "9"),
        }
        self.arrived: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.asked = 0
        self.reads = True

    def with_body(self, *pieces: bytes, ends: bool = True) -> "Exchange":
        """Let the body come in pieces; without its end the sender falls silent after them."""
        last = len(pieces) - 1
        self.arrived = [
            {"type": "http.request", "body": piece, "more_body": not ends or number < last}
            for number, piece in enumerate(pieces)
        ]
        return self

    async def receive(self) -> dict[str, Any]:
        """Return what comes next, or wait for ever."""
        self.asked += 1
        if not self.arrived:
            await asyncio.Event().wait()
        return self.arrived.pop(0)

    async def send(self, message: Any) -> None:
        """Take a part of the answer; a reader that does not read takes the head alone."""
        if not self.reads and message["type"] == "http.response.body":
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        """The body of the answer, as far as it was sent."""
        return b"".join(message["body"] for message in self.sent[1:])


def served(
    exchange: Exchange,
    application: Callable[[Environ, Callable[..., Any]], Iterable[bytes]],
    *,
    body: Pace = LONG,
    answer: Pace = LONG,
    memory: Shares | None = None,
) -> Exchange:
    """Serve one request."""
    limits = Limits(body, answer, memory or Shares(2**30, 2**30))
    gateway = Gateway(application, 2, limits)
    asyncio.run(gateway(exchange.scope, exchange.receive, exchange.send))
    return exchange


def echo(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with the body; one that is not there is wanted, and an error is named."""
    if isinstance(made["wsgi.input"], Pending):
        raise BodyWanted(10 * LARGE, "somebody")
    try:
        body = made["wsgi.input"].read()
    except (BodyTooSlow, BodyCutShort, NoShare) as error:
        start("400 Bad Request", [])
        return [type(error).__name__.encode()]
    start("200 OK", [("X-Again", str(AGAIN in made))])
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
    assert (b"x-again", b"False") in sent.sent[0]["headers"]


@pytest.mark.parametrize(
    "header",
    [
        (b"content-length", str(LARGE).encode()),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
    ],
)
def test_a_late_body_is_read_when_the_application_wants_it(header: tuple[bytes, bytes]) -> None:
    sent = Exchange("POST", "/", header).with_body(b"x" * LARGE)
    assert served(sent, echo).body == b"x" * LARGE
    assert (b"x-again", b"True") in sent.sent[0]["headers"]


def test_a_late_body_that_nobody_wants_is_not_read() -> None:
    def refuse(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        start("401 Unauthorized", [])
        return [b"no"]

    sent = Exchange("POST", "/", (b"content-length", str(LARGE).encode()))
    assert served(sent, refuse).status == 401
    assert sent.asked == 0


def test_a_body_is_read_no_further_than_it_is_of_use() -> None:
    sent = Exchange("POST", "/", (b"transfer-encoding", b"chunked"))
    sent.with_body(*[b"x" * LARGE] * 100)
    assert 10 * LARGE < len(served(sent, echo).body) <= 11 * LARGE


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
    memory.take("another", LARGE)
    sent = Exchange("POST", "/", (b"content-length", str(LARGE).encode()))
    assert served(sent, echo, memory=memory).body == b"NoShare"
    assert sent.asked == 0
    memory.give_back("another", LARGE)
    sent = Exchange("POST", "/", (b"content-length", str(LARGE).encode())).with_body(b"x" * LARGE)
    assert served(sent, echo, memory=memory).status == 200
    memory.take("everything again", LARGE)


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


def test_readers_that_read_nothing_hold_no_thread() -> None:
    def stream(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [])
        return iter([b"x" * PIECE] * 10)

    async def scene() -> None:
        gateway = Gateway(
            stream,
            1,
            Limits(LONG, LONG, Shares(1, 1)),
        )
        slow = [Exchange() for _ in range(20)]
        for exchange in slow:
            exchange.reads = False
        tasks = [asyncio.create_task(serve(gateway, exchange)) for exchange in slow]
        quick = Exchange()
        await serve(gateway, quick)
        assert len(quick.body) == 10 * PIECE
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scene())


def test_urgent_paths_are_answered_while_every_thread_is_taken() -> None:
    go_on = threading.Event()

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if made["PATH_INFO"] != "/healthz":
            go_on.wait(60)
        start("200 OK", [])
        return [b"ok"]

    async def scene() -> None:
        gateway = Gateway(application, 2, Limits(LONG, LONG, Shares(1, 1)), urgent={"/healthz"})
        others = [asyncio.create_task(serve(gateway, Exchange())) for _ in range(5)]
        urgent = Exchange(path="/healthz")
        await serve(gateway, urgent)
        assert urgent.body == b"ok"
        assert not any(task.done() for task in others)
        go_on.set()
        await asyncio.gather(*others)

    asyncio.run(scene())


def test_a_request_says_since_when_it_has_waited_for_a_thread() -> None:
    """What is measured from there on tells of starvation."""
    entered, leave = threading.Event(), threading.Event()
    since: list[float] = []

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        since.append(made[READY])
        entered.set()
        leave.wait(60)
        start("200 OK", [])
        return [b""]

    async def both() -> float:
        # One caller has one of two threads: its second request waits for the first.
        gateway = Gateway(application, 2, Limits(LONG, LONG, Shares(1, 1)))
        tasks = [asyncio.create_task(serve(gateway, Exchange())) for _ in range(2)]
        await asyncio.to_thread(entered.wait, 60)
        released = perf_counter()
        leave.set()
        await asyncio.gather(*tasks)
        return released

    released = asyncio.run(both())
    assert len(since) == 2
    assert max(since) < released


def test_large_answers_of_one_caller_advance_one_at_a_time_and_leave_others_theirs() -> None:
    begun: list[str] = []
    waits = threading.Event()
    go_on = threading.Event()

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [])
        yield bytes(PIECE)
        begun.append(made["REMOTE_ADDR"])
        if made["REMOTE_ADDR"] == "127.0.0.1":
            waits.set()
            go_on.wait(60)
        yield bytes(PIECE)

    async def scene() -> None:
        gateway = Gateway(application, 8, Limits(LONG, LONG, Shares(1, 1)))
        many = [asyncio.create_task(serve(gateway, Exchange())) for _ in range(4)]
        await asyncio.to_thread(waits.wait, 60)
        other = Exchange()
        other.scope["client"] = ("127.0.0.2", "9")
        await serve(gateway, other)
        assert len(other.body) == 2 * PIECE
        assert begun == ["127.0.0.1", "127.0.0.2"]
        go_on.set()
        await asyncio.gather(*many)

    asyncio.run(scene())
    assert begun == ["127.0.0.1", "127.0.0.2", *["127.0.0.1"] * 3]


class Overloaded:
    """An application that refuses, and writes down whether it knew so before."""

    def __init__(self) -> None:
        self.knew: list[object] = []

    def __call__(self, made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        self.knew.append(made.get(REFUSED_BEFORE))
        made[REFUSED] = "too much"
        start("503 Service Unavailable", [])
        return [b""]


def gateway_to(application: Overloaded) -> Gateway:
    """Return a gateway with one thread that never forgets a refusal."""
    return Gateway(application, 1, Limits(LONG, LONG, Shares(1, 1), holdoff=600))


def test_requests_that_waited_for_a_thread_are_refused_as_the_same_one_was() -> None:
    overloaded = Overloaded()

    async def scene() -> None:
        gateway = gateway_to(overloaded)
        await asyncio.gather(*(serve(gateway, Exchange()) for _ in range(3)))

    asyncio.run(scene())
    assert overloaded.knew == [None, "too much", "too much"]


def test_a_refused_request_that_is_repeated_at_once_waits_and_others_do_not() -> None:
    overloaded = Overloaded()

    async def scene() -> None:
        gateway = gateway_to(overloaded)
        await serve(gateway, Exchange())
        repeated = asyncio.create_task(serve(gateway, Exchange()))
        others = Exchange(path="/other"), Exchange("HEAD"), Exchange()
        others[2].scope["client"] = ("127.0.0.2", "9")
        for other in others:
            await serve(gateway, other)
        assert not repeated.done()
        repeated.cancel()

    asyncio.run(scene())
    assert overloaded.knew == [None] * 4


async def serve(gateway: Gateway, exchange: Exchange) -> None:
    """Serve one request of several."""
    await gateway(exchange.scope, exchange.receive, exchange.send)


def test_an_answer_that_is_waited_for_holds_no_thread() -> None:
    ready = threading.Event()
    waiting = threading.Semaphore(0)

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if made["PATH_INFO"] == "/wait" and made[CAN_WAIT]:
            waiting.release()
            raise Waiting(ready.is_set, 600)
        start("200 OK", [])
        return [b"ready" if ready.is_set() else b"other"]

    async def both() -> tuple[list[bytes], bytes]:
        gateway = Gateway(application, 1, Limits(LONG, LONG, Shares(1, 1)))
        waiters = [Exchange(path="/wait") for _ in range(20)]
        tasks = [
            asyncio.create_task(gateway(each.scope, each.receive, each.send)) for each in waiters
        ]
        for _ in waiters:
            await asyncio.to_thread(waiting.acquire)
        other = Exchange(path="/other")
        await gateway(other.scope, other.receive, other.send)
        ready.set()
        await asyncio.gather(*tasks)
        return [each.body for each in waiters], other.body

    assert asyncio.run(both()) == ([b"ready"] * 20, b"other")


def test_a_wait_ends_when_its_time_is_up_or_nobody_can_tell() -> None:
    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if made[CAN_WAIT]:
            raise Waiting(lambda: 1 // 0 > 0, 600 if made["PATH_INFO"] == "/error" else 0.001)
        start("200 OK", [])
        return [b"after all"]

    async def answered(path: str) -> bytes:
        exchange = Exchange(path=path)
        gateway = Gateway(application, 1, Limits(LONG, LONG, Shares(1, 1)))
        await gateway(exchange.scope, exchange.receive, exchange.send)
        return exchange.body

    assert asyncio.run(answered("/error")) == b"after all"
    assert asyncio.run(answered("/late")) == b"after all"
