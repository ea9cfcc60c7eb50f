"""An answer belongs to its request: what no request has asked for is nobody's."""

import socket
import threading

import pytest

from app.lib.outbound import connection as connections
from app.lib.outbound.client import Outbound
from tests.support.faults import until
from tests.support.servers.receivers import (
    OK,
    Listener,
    Receiver,
    http_answer,
    read_request,
)
from tests.unit.delivery.outbound.posting import BODY, HEADERS, post

STRAY = http_answer(200)


@pytest.mark.usefixtures("without_rest")
def test_the_first_answer_of_a_connection_counts_whatever_stands_behind_it(
    outbound: Outbound,
) -> None:
    with Receiver(OK + http_answer(500, b"planted")) as receiver, outbound.burst(1) as burst:
        for _ in range(3):
            assert burst.send(receiver.url(), BODY, HEADERS).status == 200
            assert burst.settle()
    assert receiver.connections == 3


@pytest.mark.usefixtures("without_rest")
def test_an_answer_with_another_behind_it_does_not_count_and_connections_serve_once(
    outbound: Outbound,
) -> None:
    answers = iter([OK, STRAY + http_answer(500)])
    with Receiver(lambda _: next(answers, OK)) as receiver, outbound.burst(1) as burst:
        assert burst.send(receiver.url(), BODY, HEADERS).succeeded
        assert burst.settle()
        assert burst.send(receiver.url(), BODY, HEADERS).succeeded
        assert not burst.settle()
        assert receiver.connections == 1
        for _ in range(3):
            assert burst.send(receiver.url(), BODY, HEADERS).succeeded
            assert burst.settle()
    assert receiver.connections == 4


@pytest.mark.usefixtures("without_rest")
def test_a_stray_on_a_resting_connection_is_found_before_it_is_used_again(
    outbound: Outbound,
) -> None:
    strayed = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while read_request(stream):
                connection.sendall(OK)
                connection.sendall(STRAY)
                strayed.set()

    with Listener(serve) as listener:
        for _ in range(2):
            assert post(outbound, listener.url()).succeeded
            assert strayed.wait(60)
            strayed.clear()
    assert listener.connections == 2


@pytest.mark.usefixtures("without_rest")
def test_after_an_hour_without_a_stray_connections_are_kept_again(
    outbound: Outbound, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([OK, STRAY + OK])
    with Receiver(lambda _: next(answers, OK)) as receiver:
        for _ in range(4):
            post(outbound, receiver.url())
        assert receiver.connections == 3
        monkeypatch.setattr(connections, "ONE_EACH_SECONDS", 0.0)
        for _ in range(3):
            post(outbound, receiver.url())
    assert receiver.connections == 3


@pytest.mark.usefixtures("without_rest")
def test_other_webhooks_of_one_receiver_keep_their_connections(outbound: Outbound) -> None:
    answers = iter([OK, OK, STRAY + OK])
    with Receiver(lambda _: next(answers, OK)) as receiver:
        post(outbound, receiver.url(), owner="good")
        for _ in range(2):
            post(outbound, receiver.url(), owner="straying")
        for _ in range(3):
            post(outbound, receiver.url(), owner="good")
    assert receiver.connections == 2


@pytest.mark.usefixtures("without_rest")
def test_no_webhook_uses_the_connection_of_another(outbound: Outbound) -> None:
    with Receiver() as receiver:
        for owner in ("one", "other", "one", "other"):
            assert post(outbound, receiver.url(), owner=owner).succeeded
    assert receiver.connections == 2


@pytest.mark.usefixtures("without_rest")
def test_a_408_on_a_kept_connection_is_the_gateways_and_the_post_is_sent_anew(
    outbound: Outbound,
) -> None:
    idle = http_answer(408, headers={"Connection": "close"})
    answers = iter([OK, idle, OK, idle, idle])
    with Receiver(lambda _: next(answers)) as receiver:
        sent = [post(outbound, receiver.url()) for _ in range(3)]
    # On a connection of its own it is the receiver's.
    assert [answer.status for answer in sent] == [200, 200, 408]
    assert [answer.reconnected for answer in sent] == [False, True, True]


def test_connections_rest_until_their_receiver_is_known_to_send_nothing_behind(
    outbound: Outbound,
) -> None:
    with Receiver() as receiver, outbound.burst(1) as burst:

        def goes_on() -> bool:
            before = receiver.connections
            for _ in range(3):
                assert burst.send(receiver.url(), BODY, HEADERS).succeeded
                assert burst.settle()
            return receiver.connections == before

        until(goes_on)
