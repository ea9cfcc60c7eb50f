"""Failures of a receiver, named by stage in plain words."""

import logging
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.lib.outbound.addresses import Address
from app.lib.outbound.client import Outbound
from app.lib.outbound.failures import Failure
from tests.support.servers.receivers import Listener, Receiver
from tests.unit.delivery.outbound.posting import Names, post

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


def test_a_port_without_a_listener_is_a_connect_failure(outbound: Outbound) -> None:
    with Receiver() as receiver:
        pass
    answer = post(outbound, receiver.url())
    assert answer.failure is Failure.CONNECT
    assert answer.error == "could not connect: connection refused"


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


def test_a_name_without_addresses_is_refused() -> None:
    answer = post(Outbound(lookup=Names([])), "https://hooks.example.com/")
    assert answer.failure is Failure.REFUSED_ADDRESS


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


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    status=st.binary(max_size=20),
    headers=st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=5),
    name=st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Content-Type", b"Connection"]),
    value=st.one_of(
        st.binary(max_size=30),
        st.sampled_from([b"chunked", b"-1", b"9" * 5000, b"1_0", b"multipart/mixed; boundary=x"]),
    ),
    body=st.binary(max_size=60),
)
def test_no_answer_makes_it_raise(
    outbound: Outbound,
    status: bytes,
    headers: list[tuple[bytes, bytes]],
    name: bytes,
    value: bytes,
    body: bytes,
) -> None:
    lines = [
        b"HTTP/1.1 200 " + status,
        *(b": ".join(pair) for pair in headers),
        name + b": " + value,
    ]
    words = b"\r\n".join([*lines, b"", body])

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(words)

    with Listener(serve) as listener:
        assert post(outbound, listener.url()) is not None


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
