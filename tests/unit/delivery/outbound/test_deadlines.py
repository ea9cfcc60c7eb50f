"""One deadline for lookup, connect, handshake, head and body."""

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from app.lib.outbound import dialing
from app.lib.outbound.addresses import Address
from app.lib.outbound.attempt import Failure
from app.lib.outbound.client import Outbound
from tests.support.faults import LONG_ENOUGH, until
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.receivers import LOOPBACK, Listener
from tests.unit.delivery.outbound.posting import ENOUGH_TO_CONNECT, HEADERS, HERE, Names, post


def drip(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Answer `start`, and then `piece` every 20 ms for ever."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(start)
        while True:
            connection.sendall(piece)
            time.sleep(0.02)

    return serve


def silent(connection: socket.socket) -> None:
    """Read nothing, say nothing, until the client goes away."""
    connection.recv(1, socket.MSG_PEEK)
    until(lambda: not connection.recv(1))


NEVER_ENDING_HEADS = {
    "a silent server": b"",
    "a dripped status line": b"y",
    "dripped headers": b"x",
    "dripped interim answers": b"HTTP/1.1 100 Continue\r\n\r\n",
    "dripped early hints": b"HTTP/1.1 103 Early Hints\r\n\r\n",
}


@pytest.mark.parametrize("piece", NEVER_ENDING_HEADS.values(), ids=NEVER_ENDING_HEADS.keys())
def test_a_head_that_never_ends_ends_at_the_deadline(outbound: Outbound, piece: bytes) -> None:
    start = {b"x": b"HTTP/1.1 200 OK\r\nX: ", b"y": b"HTTP/1.1 200 O"}.get(piece, b"")
    with Listener(drip(start, piece)) as listener:
        answer = post(outbound, listener.url(), seconds=ENOUGH_TO_CONNECT)
    assert answer.failure is Failure.TIMEOUT
    assert answer.error == "the time was up after 1 s, while waiting for the answer"


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 99999", b"Transfer-Encoding: chunked", b"Connection: close"],
    ids=["length", "chunked", "until closed"],
)
def test_a_dripped_body_ends_after_a_second_and_the_status_stands(
    outbound: Outbound, head: bytes
) -> None:
    piece = b"1\r\nx\r\n" if b"chunked" in head else b"x"
    begun = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + 3 * piece
    with Listener(drip(begun, piece)) as listener:
        answer = post(outbound, listener.url(), seconds=LONG_ENOUGH)
    assert answer.succeeded
    assert answer.body.startswith(b"xxx")
    assert answer.error == "the body of the answer had not ended after 1 s"


def test_a_handshake_that_never_ends_ends_at_the_deadline(outbound: Outbound) -> None:
    for serve in (silent, drip(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03", b"x")):
        with Listener(serve) as listener:
            url = f"https://127.0.0.1:{listener.port}/"
            answer = post(outbound, url, seconds=ENOUGH_TO_CONNECT)
        assert answer.failure is Failure.TIMEOUT
        assert "TLS" in (answer.error or "")


def test_an_answer_dripped_under_tls_ends_at_the_deadline(
    trusting: Outbound, authority: ServerAuthority
) -> None:
    tls = authority.server("127.0.0.1")
    with Listener(drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"), tls=tls) as listener:
        answer = post(trusting, listener.url(), seconds=0.4)
    assert answer.failure is Failure.TIMEOUT


def test_a_receiver_that_never_reads_is_left_at_the_deadline(
    trusting: Outbound, tls: ssl.SSLContext | None
) -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        over.wait(LONG_ENOUGH)

    with Listener(serve, tls=tls) as listener:
        # With TLS the handshake comes first.
        answer = trusting.send(listener.url(), b"x" * 50_000_000, HEADERS, deadline_seconds=3)
        over.set()
    assert answer.failure is Failure.TIMEOUT
    assert "sending" in (answer.error or "")


@contextlib.contextmanager
def full_port() -> Iterator[int]:
    """Yield a port that answers no more connection attempts: its queue is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def test_a_connect_that_hangs_ends_at_the_deadline(outbound: Outbound) -> None:
    with full_port() as port:
        answer = post(outbound, f"http://127.0.0.1:{port}/", seconds=ENOUGH_TO_CONNECT)
    assert answer.failure is Failure.TIMEOUT
    assert "connecting" in (answer.error or "")


def test_connecting_has_a_limit_of_its_own_for_all_addresses_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialing, "CONNECT_SECONDS", 0.3)
    client = Outbound(LOOPBACK, lookup=Names([HERE] * 50))
    with full_port() as port:
        answer = post(client, f"http://hooks.example.com:{port}/")
    # Fifty limits of their own would go beyond the deadline: a timeout.
    assert answer.failure is Failure.CONNECT


def lookups() -> int:
    """Count the threads that resolve a name."""
    return sum(thread.name.startswith("resolve ") for thread in threading.enumerate())


def test_a_name_that_hangs_ends_at_the_deadline_and_holds_one_thread() -> None:
    over = threading.Event()

    def hang(host: str) -> list[Address]:
        over.wait(LONG_ENOUGH)
        return [HERE]

    client = Outbound(LOOPBACK, lookup=hang)
    for _ in range(4):
        answer = post(client, "http://hooks.example.com/", seconds=0.1)
        assert answer.failure is Failure.TIMEOUT
        assert "resolving" in (answer.error or "")
    assert lookups() == 1
    over.set()
    until(lambda: lookups() == 0)


def test_names_that_hang_leave_a_bounded_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "MAX_LOOKUPS", 2)
    over = threading.Event()

    def hang(host: str) -> list[Address]:
        over.wait(LONG_ENOUGH)
        return [HERE]

    client = Outbound(LOOPBACK, lookup=hang)
    numbers = itertools.count()

    def two_hang() -> bool:
        # The time of a POST may be up before its lookup has begun: then another follows.
        hanging = post(client, f"http://{next(numbers)}.example.com/", seconds=0.1)
        assert hanging.failure is Failure.TIMEOUT
        return lookups() == 2

    until(two_hang)
    for name in ("c", "d"):
        refused = post(client, f"http://{name}.example.com/", seconds=LONG_ENOUGH)
        assert refused.failure is Failure.DNS
    assert lookups() == 2
    over.set()
    until(lambda: lookups() == 0)
