"""Callers that take more than their share: slow senders, readers that read nothing, many at once.

A siege runs in a process of its own, a thread a connection, until it is ended. A connection that
the service closes is opened again at once: the pressure stays the same however it is answered.
"""

import re
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing import get_context
from multiprocessing.connection import Connection

from app.dev.stores import subreaper

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_PIECE = 256 * 1024
_SMALL_WINDOW = 4096
_DRIP_SECONDS = 1.0
_ANSWER_SECONDS = 120.0
_END_SECONDS = 10.0


class Habit(StrEnum):
    """How a connection behaves."""

    DRIP = "sends a byte of its body a second"
    HOLD = "reads nothing of its answer"
    REPEAT = "asks again as soon as it is answered"


@dataclass(frozen=True)
class Siege:
    """So many connections to a port of this machine that send the same request."""

    port: int
    head: bytes
    body: bytes
    connections: int
    habit: Habit

    @property
    def request_head(self) -> bytes:
        """The head of the request, complete; the connection is for this one."""
        return self.head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(self.body)


@dataclass
class Besieged:
    """What became of a siege: answers by status, and connections that ended without one."""

    answers: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{count} x {status}" for status, count in sorted(self.answers.items()))


@contextmanager
def laid(siege: Siege) -> Iterator[Besieged]:
    """Keep a siege up for the length of a `with`; its answers are there in the end."""
    besieged = Besieged()
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(siege, theirs), daemon=True)
    process.start()
    try:
        if ours.recv() != "up":
            raise ConnectionError("the siege did not begin")
        yield besieged
        ours.send("end")
        if ours.poll(_END_SECONDS):
            besieged.answers = ours.recv()
    finally:
        process.kill()
        process.join()


def _run(siege: Siege, parent: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    subreaper.tie_to_parent(signal.SIGKILL)
    answers: Counter[str] = Counter()
    habit = _HABITS[siege.habit]
    for _ in range(siege.connections):
        threading.Thread(target=_again, args=(habit, siege, answers), daemon=True).start()
    time.sleep(_DRIP_SECONDS)
    parent.send("up")
    parent.recv()
    parent.send(dict(answers))


def _again(
    habit: Callable[[Siege, socket.socket], str], siege: Siege, answers: "Counter[str]"
) -> None:
    while True:
        ended = "closed"
        with suppress(OSError), socket.socket() as connection:
            connection.settimeout(_ANSWER_SECONDS)
            if siege.habit is Habit.HOLD:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_WINDOW)
            connection.connect(("127.0.0.1", siege.port))
            connection.sendall(siege.request_head)
            ended = habit(siege, connection)
        answers[ended] += 1


def _drip(siege: Siege, connection: socket.socket) -> str:
    for place in range(len(siege.body)):
        connection.sendall(siege.body[place : place + 1])
        if select.select([connection], [], [], _DRIP_SECONDS)[0]:
            break
    return _status(connection.recv(_PIECE))


def _hold(siege: Siege, connection: socket.socket) -> str:
    connection.sendall(siege.body)
    gone = select.poll()
    gone.register(connection, select.POLLRDHUP)
    gone.poll()
    return "closed"


def _repeat(siege: Siege, connection: socket.socket) -> str:
    connection.sendall(siege.body)
    status = _status(connection.recv(_PIECE))
    while connection.recv(_PIECE):
        pass
    return status


def _status(answer: bytes) -> str:
    match = _STATUS.match(answer)
    return match[1].decode() if match else "closed"


_HABITS: Mapping[Habit, Callable[[Siege, socket.socket], str]] = {
    Habit.DRIP: _drip,
    Habit.HOLD: _hold,
    Habit.REPEAT: _repeat,
}
