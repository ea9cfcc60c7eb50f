"""Connections are kept alive, replaced once and bounded."""

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from app.lib.outbound import connection
from app.lib.outbound.addresses import Address
from app.lib.outbound.attempt import Failure
from app.lib.outbound.client import Outbound
from tests.support.faults import until
from tests.support.servers.receivers import LOOPBACK, OK, Listener, Receiver, Request
from tests.unit.delivery.outbound.posting import BODY, ENOUGH_TO_CONNECT, HEADERS, HERE, Names, post

pytestmark = pytest.mark.usefixtures("without_rest")


def test_an_old_connection_is_not_used_again(
    outbound: Outbound, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_CONNECTION_SECONDS", 0.0)
    with Receiver() as receiver:
        for _ in range(3):
            assert post(outbound, receiver.url()).succeeded
    assert receiver.connections == 3


def test_old_connections_that_nobody_needs_are_closed(
    outbound: Outbound, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        together = [outbound.burst("webhook") for _ in range(4)]
        for burst in together:
            assert burst.send(receiver.url(), BODY, HEADERS).succeeded
        assert receiver.connections == 4
        before = open_files()
        for burst in together:
            burst.close()
        monkeypatch.setattr(connection, "MAX_CONNECTION_SECONDS", 0.0)
        assert post(outbound, receiver.url()).succeeded
        # Each connection had two ends in this process; a fifth has come.
        until(lambda: open_files() <= before - 8 + 2)


def test_a_connection_that_was_closed_meanwhile_is_replaced_silently(outbound: Outbound) -> None:
    with Receiver() as receiver:
        assert post(outbound, receiver.url()).succeeded
        receiver.cut()
        answer = post(outbound, receiver.url())
    assert answer.succeeded
    assert receiver.connections == 2


def test_a_kept_connection_that_dies_without_a_byte_is_tried_once_anew(
    trusting: Outbound, tls: ssl.SSLContext | None
) -> None:
    answers = iter([OK, OK, None, OK, None, None])
    with Receiver(lambda _: next(answers), tls=tls) as receiver:
        sent = [post(trusting, receiver.url()) for _ in range(4)]
    assert [answer.succeeded for answer in sent] == [True, True, True, False]
    assert [answer.reconnected for answer in sent] == [False, False, True, True]
    assert sent[3].failure is Failure.RESET
    assert receiver.connections == 3


def test_a_kept_connection_that_dies_halfway_or_hangs_is_not_tried_again(
    outbound: Outbound,
) -> None:
    def answer(words: bytes) -> Callable[[Request], bytes]:
        answers = iter([OK, words])
        return lambda _: next(answers)

    for words in (b"H", b"HTTP/1.1 200 OK\r\nX"):
        with Receiver(answer(words)) as receiver:
            assert post(outbound, receiver.url()).succeeded
            broken = post(outbound, receiver.url(), seconds=ENOUGH_TO_CONNECT)
        assert broken.failure is Failure.TIMEOUT
        assert len(receiver.requests) == 2


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_thousand_failures_leave_no_file_and_no_thread() -> None:
    def fail(host: str) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    nameless = Outbound(LOOPBACK, lookup=fail)
    client = Outbound(LOOPBACK)

    def speak_nonsense(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"nonsense\r\n\r\n")

    with (
        socket.socket() as closed,
        Receiver(lambda _: None) as mute,
        Listener(speak_nonsense) as broken,
    ):
        # Bound and not listening, so that no other listener takes the port.
        closed.bind(("127.0.0.1", 0))
        refused = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        urls = [refused, mute.url(), broken.url(), f"https://127.0.0.1:{broken.port}/"]
        for url in urls:
            assert post(client, url).failure
        until(lambda: open_files() < 200)
        files, threads = open_files(), threading.active_count()
        for _ in range(250):
            for url in urls:
                assert client.send(url, BODY, HEADERS).failure
            assert nameless.send("http://hooks.example.com/", BODY, HEADERS).failure is Failure.DNS
        until(lambda: threading.active_count() <= threads)
        until(lambda: open_files() <= files)
    client.close()


def test_connections_to_many_receivers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 64)
    client = Outbound(LOOPBACK, lookup=Names([HERE]))
    with Receiver() as receiver:
        before = open_files()
        for number in range(300):
            assert post(client, receiver.url(host=f"h{number}.example.com")).succeeded
        # Each connection has two ends in this process.
        until(lambda: open_files() - before <= 2 * connection.MAX_CONNECTIONS + 4)
        client.close()
        until(lambda: open_files() <= before + 4)
