"""Requests leave as given; responses are read within bounds."""

import gzip
import socket

import pytest

from app.lib.outbound.client import Outbound
from tests.support.faults import LONG_ENOUGH
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.receivers import OK, Listener, Receiver, http_answer
from tests.unit.delivery.outbound.posting import BODY, HEADERS, post


def test_a_post_arrives_as_it_was_given(outbound: Outbound) -> None:
    with Receiver(http_answer(200, b"thanks", {"X-Seen": "yes"})) as receiver:
        answer = post(outbound, receiver.url("/hook/%41?x=1&y=%2F"))
    assert answer.succeeded
    assert (answer.status, answer.body, answer.failure, answer.error) == (
        200,
        b"thanks",
        None,
        None,
    )
    assert ("X-Seen", "yes") in answer.headers
    [request] = receiver.requests
    assert (request.method, request.path, request.body) == ("POST", "/hook/%41?x=1&y=%2F", BODY)
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "accept-encoding": "identity",
        "content-length": str(len(BODY)),
        **HEADERS,
    }


@pytest.mark.parametrize(
    "path",
    ["/ok?token=a%2Fb&note=50%25", "/%2f", "/a[0]", "/x?", "/a//b/../c", "/a;b=c|'\"<>{}^`?d?e"],
)
def test_path_and_query_leave_as_they_are_written(outbound: Outbound, path: str) -> None:
    with Receiver() as receiver:
        assert post(outbound, receiver.url(path)).succeeded
    assert receiver.requests[0].path == path


def test_head_and_body_arrive_in_one_piece(outbound: Outbound) -> None:
    pieces: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        pieces.append(connection.recv(65536))
        connection.sendall(OK)

    with Listener(serve) as listener:
        assert post(outbound, listener.url()).succeeded
    assert pieces[0].endswith(BODY)


@pytest.mark.parametrize("value", ["a\r\nx-forged: yes", "a\nx-forged: yes", "a\rb"])
def test_a_header_with_a_line_break_is_not_sent(outbound: Outbound, value: str) -> None:
    with Receiver() as receiver:
        answer = outbound.send(receiver.url(), BODY, {**HEADERS, "x-value": value})
    assert not answer.succeeded
    assert receiver.requests == []


@pytest.mark.usefixtures("without_rest")
def test_the_timings_say_what_happened(trusting: Outbound, authority: ServerAuthority) -> None:
    with Receiver(tls=authority.server("hooks.example.com")) as receiver:
        first = post(trusting, receiver.url(host="hooks.example.com")).timings
        second = post(trusting, receiver.url(host="hooks.example.com")).timings
    parts = (first.dns, first.connect, first.tls, first.first_byte)
    assert all(part is not None and 0 <= part <= first.total for part in parts)
    assert (second.dns, second.connect, second.tls) == (None, None, None)
    assert second.first_byte is not None
    assert second.first_byte <= second.total


pytestmark = pytest.mark.usefixtures("without_rest")


def test_interim_answers_are_skipped_and_the_final_one_is_taken(outbound: Outbound) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    words = b"HTTP/1.1 100 Continue\r\n\r\n" + early + early + http_answer(201, b"made")
    with Receiver(words) as receiver:
        for _ in range(2):
            answer = post(outbound, receiver.url())
            assert (answer.status, answer.body) == (201, b"made")
    assert receiver.connections == 1


def test_what_follows_a_switch_of_protocols_is_not_read_as_http(outbound: Outbound) -> None:
    words = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + http_answer(200, b"later")
    with Receiver(words) as receiver:
        for _ in range(2):
            answer = post(outbound, receiver.url())
            assert (answer.status, answer.body, answer.succeeded) == (101, b"", False)
    assert receiver.connections == 2


def test_http_1_0_and_chunks_and_empty_answers_are_read(outbound: Outbound) -> None:
    chunks = b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: x\r\n\r\n"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    for words, body, connections in (
        (b"HTTP/1.0 200 OK\r\n\r\nabcde", b"abcde", 2),
        (b"HTTP/1.1 200 OK\r\n\r\nabcde", b"abcde", 2),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na", b"a", 1),
        (chunked, b"abcde", 1),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"", 1),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na", b"a", 2),
    ):

        def serve(connection: socket.socket, words: bytes = words) -> None:
            while connection.recv(65536):
                connection.sendall(words)
                if b"ength" not in words and b"chunked" not in words and b"204" not in words:
                    return

        with Listener(serve) as listener:
            for _ in range(2):
                answer = post(outbound, listener.url())
                assert (answer.body, answer.error) == (body, None)
        assert listener.connections == connections, words


def test_nothing_is_decompressed(outbound: Outbound) -> None:
    bomb = gzip.compress(b"\x00" * 30_000_000)
    for encoding in ("gzip", "deflate", "br", "x-unknown", "gzip, gzip"):
        with Receiver(http_answer(200, bomb, {"Content-Encoding": encoding})) as receiver:
            answer = post(outbound, receiver.url())
        assert answer.body == bomb[:4096]


@pytest.mark.parametrize(
    "head", [b"Content-Length: 1000000000", b"Transfer-Encoding: chunked", b"X: y"]
)
def test_an_endless_body_is_left_after_4_kib(outbound: Outbound, head: bytes) -> None:
    sent = 0

    def serve(connection: socket.socket) -> None:
        nonlocal sent
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        piece = b"1000\r\n" + b"x" * 4096 + b"\r\n" if b"chunked" in head else b"x" * 4096
        while True:
            connection.sendall(piece)
            sent += len(piece)

    with Listener(serve) as listener:
        answer = post(outbound, listener.url(), seconds=LONG_ENOUGH)
        assert answer.succeeded
        assert answer.body == b"x" * 4096
        assert answer.error is None
    assert sent < 20_000_000


def test_endless_trailers_are_left_after_64_kib(outbound: Outbound) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        while True:
            connection.sendall(b"X: y\r\n" * 100)

    with Listener(serve) as listener:
        answer = post(outbound, listener.url(), seconds=LONG_ENOUGH)
    # Left before the deadline, which would be told.
    assert (answer.succeeded, answer.error) == (True, None)


@pytest.mark.parametrize(("size", "connections"), [(4096, 1), (4097, 2), (200_000, 2)])
def test_a_connection_is_kept_only_when_the_answer_was_read_whole(
    outbound: Outbound, size: int, connections: int
) -> None:
    with Receiver(http_answer(200, b"x" * size)) as receiver:
        for _ in range(2):
            answer = post(outbound, receiver.url())
            assert (answer.succeeded, len(answer.body)) == (True, 4096)
    assert receiver.connections == connections


def test_headers_are_kept_within_bounds_and_without_control_characters(outbound: Outbound) -> None:
    words = (
        b"HTTP/1.1 429 Slow\r\nX-Long: " + b"x" * 9000 + b"\r\nX-Null: a\x00b\x1bc\r\n"
        b"X-Folded: a\r\n b\r\nX-Twice: 1\r\nX-Twice: 2\r\nX-Latin: \xfc\r\n"
        b"Retry-After: 120\r\nContent-Length: 0\r\n\r\n"
    )
    with Receiver(words) as receiver:
        answer = post(outbound, receiver.url())
    assert answer.retry_after == "120"
    names = [name for name, _ in answer.headers]
    assert "X-Long" not in names
    assert names.count("X-Twice") == 2
    kept = dict(answer.headers)
    assert (kept["X-Null"], kept["X-Latin"]) == ("a b c", "ü")
    assert not any(ord(c) < 32 for name, value in answer.headers for c in name + value)
