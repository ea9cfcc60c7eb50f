"""A receiver sends answers that nobody asked for: no delivery is said to have another's outcome."""

import contextlib
import socket
import threading
from collections import defaultdict

import pytest

from app import ids
from app.core import tenants
from app.lib.outbound import connection as connections
from tests.support.secrets import MASTER_KEYS
from tests.support.servers.receivers import OK, Listener, Receiver, http_answer, read_request
from tests.support.workers.worlds import World

STRAY = http_answer(200)


class Straying:
    """Answers by turns 204, with a stray 200 three milliseconds behind, and a late 500.

    `answered` has, by event, all statuses that its POSTs were answered.
    """

    def __init__(self) -> None:
        self.answered: dict[str, list[int]] = defaultdict(list)
        self._count = 0

    def serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while request := read_request(stream):
                self._count += 1
                status = 204 if self._count % 2 else 500
                self.answered[request.headers["webhook-id"]].append(status)
                if status == 204:
                    connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                    threading.Timer(0.003, _send, (connection, STRAY)).start()
                else:
                    # The stray comes first.
                    threading.Event().wait(0.01)
                    connection.sendall(http_answer(500))


def _send(connection: socket.socket, words: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(words)


def test_of_two_tenants_no_delivery_succeeds_whose_posts_were_all_refused(world: World) -> None:
    other = World(world.runtime, tenants.create(world.database, MASTER_KEYS, "the other")[0])
    receiver = Straying()
    with Listener(receiver.serve) as listener:
        hooks = [(each, each.webhook(listener.url())) for each in (world, other)]
        for each, _ in hooks:
            each.emit(30)
        for _ in range(30):
            for each, webhook in hooks:
                each.run("UPDATE lanes SET paused_until = NULL, pause_level = 0, concurrency = 2")
                each.turn(webhook)
    found = [row for each, webhook in hooks for row in each.deliveries(webhook)]
    succeeded = [ids.text("evt", row["event_id"]) for row in found if row["status"] == "succeeded"]
    assert succeeded
    assert [each for each in succeeded if 204 not in receiver.answered[each]] == []


def test_a_delivery_whose_answer_may_be_another_ones_is_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REST_SECONDS", 0.0)
    # The second POST is answered 500, behind a stray.
    answers = iter([OK, STRAY + http_answer(500)])
    with Receiver(lambda _: next(answers, OK)) as receiver:
        webhook = world.webhook(receiver.url())
        world.emit(4)
        world.has_answered(webhook)
        world.turn(webhook)
        sent = [request.headers["webhook-id"] for request in receiver.requests]
        assert (len(sent), len(set(sent))) == (4, 4)
        states = [row["status"] for row in world.deliveries(webhook)]
        assert sorted(states) == ["pending", *["succeeded"] * 3]
        world.turn(webhook)
        assert [request.headers["webhook-id"] for request in receiver.requests[4:]] == [sent[1]]
        assert receiver.requests[4].headers["x-service-attempt"] == "1"
        # Two on the first, and one each.
        assert receiver.connections == 4
    assert [row["status"] for row in world.deliveries(webhook)] == ["succeeded"] * 4
    assert len(world.attempts()) == 4
    assert world.books(webhook)["balanced"]


def test_the_last_answer_of_a_turn_counts_once_nothing_stands_behind_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REST_SECONDS", 0.0)
    answers = iter([OK, STRAY + http_answer(500)])
    with Receiver(lambda _: next(answers, http_answer(500))) as receiver:
        webhook = world.webhook(receiver.url())
        for _ in range(3):
            world.emit()
            world.turn(webhook)
    states = [(row["status"], row["status_code"]) for row in world.deliveries(webhook)]
    assert ("succeeded", 200) in states
    assert [status for status, code in states if status == "succeeded"] == ["succeeded"]
