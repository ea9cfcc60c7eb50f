"""Answers of receivers: failures by stage in plain words; odd ones cost no time."""

import contextlib
import logging
import socket
import ssl
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.lib.outbound.addresses import Address
from app.lib.outbound.answers import AnswerReader, BrokenOff, NotHTTP
from app.lib.outbound.attempt import Failure
from app.lib.outbound.client import BODY_SECONDS, Outbound
from tests.support.faults import LONG_ENOUGH
from tests.support.servers.receivers import Listener, Receiver, http_answer
from tests.unit.delivery.outbound.posting import HEADERS, post

NOT_HTTP = {
    "nonsense": b"hello there\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no status": b"HTTP/1.1\r\n\r\n",
    "status in words": b"HTTP/1.1 OK 200\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "negative status": b"HTTP/1.1 -200 OK\r\n\r\n",
    "unknown version": b"HTTP/3.7 200 OK\r\n\r\n",
    "a status line without end": b"HTTP/1.1 200 " + b"x" * 70_000,
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
}


@pytest.mark.parametrize("words", NOT_HTTP.values(), ids=NOT_HTTP.keys())
def test_what_is_not_http_is_a_failure_in_plain_words(outbound: Outbound, words: bytes) -> None:
    with Receiver(words) as receiver:
        answer = post(outbound, receiver.url())
    assert answer.failure is Failure.PROTOCOL
    assert answer.body == b""


def test_a_connection_that_closes_or_resets_is_a_failure(outbound: Outbound) -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close_halfway(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-")

    for serve in (reset, lambda connection: None, close_halfway):
        with Listener(serve) as listener:
            answer = post(outbound, listener.url())
        assert answer.failure is Failure.RESET
        assert listener.connections == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [(socket.EAI_NONAME, "does not resolve"), (socket.EAI_AGAIN, "name servers did not answer")],
)
def test_a_name_that_does_not_resolve_is_a_dns_failure(code: int, words: str) -> None:
    def fail(host: str) -> list[Address]:
        raise socket.gaierror(code, "in the system's words")

    answer = post(Outbound(lookup=fail), "https://hooks.example.com/")
    assert answer.failure is Failure.DNS
    assert words in (answer.error or "")


def test_a_body_that_breaks_off_leaves_the_status(outbound: Outbound) -> None:
    for head in (b"Content-Length: 10", b"Transfer-Encoding: chunked"):
        words = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n5\r\nab"

        def serve(connection: socket.socket, words: bytes = words) -> None:
            connection.recv(65536)
            connection.sendall(words)

        with Listener(serve) as listener:
            answer = post(outbound, listener.url())
        assert answer.succeeded
        assert answer.error is not None


def test_nothing_of_a_url_or_an_answer_is_logged(
    outbound: Outbound, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nbad header secret\r\nX: y\r\n\r\nsecret")

    with Listener(serve) as listener:
        for path in ("/secret", "/?token=secret"):
            assert post(outbound, listener.url(path)).succeeded
        post(outbound, "https://127.0.0.1:1/secret")
    assert "secret" not in caplog.text


END = b"Retry-After: 7\r\nContent-Length: 2\r\n\r\nok"
ODD_HEADS = {
    "a line without a colon": b"HTTP/1.1 %d X\r\nnonsense\r\n" + END,
    "an empty name": b"HTTP/1.1 %d X\r\n: nonsense\r\n" + END,
    "a name with a space": b"HTTP/1.1 %d X\r\nMy Name: x\r\n" + END,
    "a name with a letter outside ASCII": "HTTP/1.1 %d X\r\nGrüße: x\r\n".encode() + END,
    "a space before the colon": b"HTTP/1.1 %d X\r\nX : y\r\n" + END,
    "a folded line": b"HTTP/1.1 %d X\r\nX: y\r\n z\r\n" + END,
    "a first line that is folded": b"HTTP/1.1 %d X\r\n z\r\n" + END,
    "no reason": b"HTTP/1.1 %d\r\n" + END,
    "a reason outside ASCII": "HTTP/1.1 %d Größe\r\n".encode() + END,
    "bare line feeds": b"HTTP/1.1 %d X\nRetry-After: 7\nContent-Length: 2\n\nok",
    "a line break before": b"\r\nHTTP/1.1 %d X\r\n" + END,
    "1,000 headers": b"HTTP/1.1 %d X\r\n" + b"X: y\r\n" * 1000 + END,
    "two lengths that differ": b"HTTP/1.1 %d X\r\nContent-Length: 9\r\n" + END,
    "a length in words": b"HTTP/1.1 %d X\r\nContent-Length: two\r\n" + END,
    "an endless length": b"HTTP/1.1 %d X\r\nContent-Length: " + b"9" * 5000 + b"\r\n" + END,
    "an unknown coding": b"HTTP/1.1 %d X\r\nTransfer-Encoding: br\r\n" + END,
}


def answering(words: bytes) -> Listener:
    """Return a receiver that says this, and then neither a word nor that it is over."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(words)
        connection.recv(1)

    return Listener(serve)


@pytest.mark.parametrize("status", [200, pytest.param(503, marks=pytest.mark.toolbox)])
@pytest.mark.parametrize("words", ODD_HEADS.values(), ids=ODD_HEADS.keys())
def test_what_is_odd_in_headers_changes_nothing(
    outbound: Outbound, words: bytes, status: int
) -> None:
    with answering(words.replace(b"%d", str(status).encode())) as receiver:
        answer = post(outbound, receiver.url(), seconds=LONG_ENOUGH)
    assert (answer.status, answer.retry_after, answer.body) == (status, "7", b"ok")


def test_names_that_are_odd_are_shown(outbound: Outbound) -> None:
    words = b"HTTP/1.1 200 OK\r\nMy Name: x\r\nContent-Length: 0\r\n\r\n"
    with answering(words) as receiver:
        assert ("My Name", "x") in post(outbound, receiver.url()).headers


@pytest.mark.parametrize(
    "headers",
    [b"X: " + b"y" * 100_000, (b"X: " + b"y" * 2000 + b"\r\n") * 49 + b"X: y"],
    ids=["one", "50"],
)
@pytest.mark.parametrize("ends", [True, False])
def test_headers_beyond_64_kib_are_left(outbound: Outbound, headers: bytes, ends: bool) -> None:
    words = b"HTTP/1.1 200 OK\r\nRetry-After: 7\r\n" + headers
    words += b"\r\nContent-Length: 0\r\n\r\n" * ends
    with answering(words) as receiver:
        answer = post(outbound, receiver.url(), seconds=LONG_ENOUGH)
    assert (answer.status, answer.retry_after, answer.error) == (200, "7", None)


BODIES_THAT_SHOULD_NOT_BE = {
    "204 with a length": (b"HTTP/1.1 204 X\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "204 with a length and no body": (b"HTTP/1.1 204 X\r\nContent-Length: 5\r\n\r\n", b""),
    "204 with a body": (b"HTTP/1.1 204 X\r\n\r\nhello", b"hello"),
    "204 with a line break": (b"HTTP/1.1 204 X\r\n\r\n\r\n", b"\r\n"),
    "204 with chunks": (b"HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", None),
    "200 with a line break behind": (http_answer(200, b"ok") + b"\r\n", b"ok"),
}


@pytest.mark.usefixtures("without_rest")
@pytest.mark.parametrize(
    ("words", "body"), BODIES_THAT_SHOULD_NOT_BE.values(), ids=BODIES_THAT_SHOULD_NOT_BE.keys()
)
def test_a_body_that_should_not_be_sends_nothing_twice(
    outbound: Outbound, words: bytes, body: bytes | None
) -> None:
    taken = []

    def serve(connection: socket.socket) -> None:
        while received := connection.recv(65536):
            taken.append(received)
            connection.sendall(words)

    with Listener(serve) as receiver, outbound.burst(1) as burst:
        for _ in range(3):
            answer = burst.send(receiver.url(), b"", HEADERS, deadline_seconds=LONG_ENOUGH)
            assert (answer.succeeded, answer.error, answer.reconnected) == (True, None, False)
            assert body is None or answer.body == body
            assert burst.settle()
    assert len(taken) == 3


def test_a_body_without_an_end_is_read_for_a_second(outbound: Outbound) -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\nok") as receiver:
        answer = post(outbound, receiver.url(), seconds=LONG_ENOUGH)
    assert (answer.status, answer.body) == (200, b"ok")
    assert answer.error == f"the body of the answer had not ended after {BODY_SECONDS:g} s"


@pytest.mark.parametrize("leaves", [True, False], ids=["closes", "stays"])
def test_an_answer_before_the_request_is_read_is_taken(
    trusting: Outbound, tls: ssl.SSLContext | None, leaves: bool
) -> None:
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(http_answer(413, b"too large", {"Connection": "close"}))
        if leaves:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_WR)
        else:
            over.wait(LONG_ENOUGH)

    with Listener(serve, tls=tls) as listener:
        for _ in range(20):
            answer = trusting.send(
                listener.url(), b"x" * 5_000_000, HEADERS, deadline_seconds=LONG_ENOUGH
            )
            assert (answer.status, answer.error) == (413, None)
        over.set()


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from([b"\r\n", b"\n", b"\r\n\r\n"]), max_size=9),
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 204\n", b"HTTP/1.1 100 x\r\n\r\n"]),
    st.sampled_from([b"", b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 3\r\n\r\n"]),
    st.integers(1, 50),
)
def test_any_bytes_are_an_answer_or_refused_however_they_are_cut(
    pieces: list[bytes], begin: bytes, framing: bytes, step: int
) -> None:
    words = begin + framing + b"".join(pieces)

    def read(size: int) -> object:
        rest = iter([words[at : at + size] for at in range(0, len(words), size)])
        reader = AnswerReader(lambda: next(rest, b""))
        body = bytearray()
        try:
            head = reader.head()
        except (NotHTTP, BrokenOff) as error:
            return type(error)
        assert 100 <= head.status <= 999
        try:
            whole = reader.body(head, 20, body)
        except (NotHTTP, BrokenOff) as error:
            return head.status, head.headers, bytes(body), type(error)
        assert len(body) <= 20
        # What stands behind a 204 is shown as far as it has come.
        return head.status, head.headers, head.status == 204 or (bytes(body), whole)

    assert read(step) == read(len(words) or 1)
