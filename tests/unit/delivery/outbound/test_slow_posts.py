"""The alarm for a slow POST, and logs without URLs."""

import logging
import socket
import threading

import pytest

from app.lib.outbound.client import Outbound
from tests.support.faults import LONG_ENOUGH, until
from tests.support.servers.receivers import OK, Listener, Receiver, Request
from tests.unit.delivery.outbound.posting import BODY, HEADERS, post


def test_the_alarm_is_raised_once_for_a_slow_post_and_never_for_a_quick_one(
    outbound: Outbound,
) -> None:
    slow: list[str] = []
    over = threading.Event()

    def answer(request: Request) -> bytes:
        if request.path == "/slow":
            over.wait(LONG_ENOUGH)
        return OK

    def send(path: str, receiver: Receiver) -> None:
        outbound.send(
            receiver.url(path), BODY, HEADERS, on_slow=lambda: slow.append(path), slow_after=1
        )

    with Receiver(answer) as receiver:
        for _ in range(20):
            send("/quick", receiver)
        out = threading.Thread(target=send, args=("/slow", receiver))
        out.start()
        # By then those of the quick ones would have been raised as well.
        until(lambda: slow)
        over.set()
        out.join()
    assert slow == ["/slow"]


def test_an_alarm_that_fails_is_logged_and_the_next_still_comes(
    outbound: Outbound, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    def alarm() -> None:
        called.append(1)
        raise ValueError("of the test")

    def answer(_: Request) -> bytes:
        already = len(receiver.requests) - 1
        until(lambda: len(called) > already)
        return OK

    with Receiver(answer) as receiver:
        for _ in range(2):
            sent = outbound.send(
                receiver.url(),
                BODY,
                HEADERS,
                deadline_seconds=LONG_ENOUGH,
                on_slow=alarm,
                slow_after=0.05,
            )
            assert sent.succeeded
    assert len(called) == 2
    until(lambda: "An alarm failed." in caplog.text)


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
