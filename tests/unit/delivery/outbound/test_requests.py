"""Outbound requests: the bytes, headers and timings of one POST."""

import socket

import pytest

from app.lib.outbound.client import Outbound
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


def test_an_empty_and_a_large_body_arrive(outbound: Outbound) -> None:
    with Receiver() as receiver:
        for body in (b"", b"x" * 300_000):
            assert outbound.send(receiver.url(), body, HEADERS).succeeded
    assert [len(request.body) for request in receiver.requests] == [0, 300_000]


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
