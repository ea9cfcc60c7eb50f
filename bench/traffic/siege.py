"""Callers that take more than their share: slow, silent, hasty, or many at once.

A siege runs in one thread of its own process until it is ended: callers elsewhere would take no
processor from the service. A connection that the service closes is opened again at once, so that
the pressure stays the same.
"""

import asyncio
import re
import resource
import select
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeAlias

from dev import processes

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_PIECE = 256 * 1024
_SMALL_WINDOW = 4096
_DRIP_SECONDS = 1.0
_DROP_SECONDS = 0.2
_HEAD_START_SECONDS = 1.0
_ANSWER_SECONDS = 120.0
_END_SECONDS = 10.0
# Whoever is measured comes from 127.0.0.1: what an address has for itself is not shared.
_ADDRESS = "127.0.0.2"


class Habit(StrEnum):
    """How a connection behaves."""

    DRIP = "sends a byte of its body a second"
    HOLD = "reads nothing of its answer"
    REPEAT = "asks again as soon as it is answered"
    DROP = "leaves before it is answered, and comes again"
    SILENT = "sends half of a head"


@dataclass(frozen=True)
class Siege:
    """So many connections to a port of this machine that send the same request.

    Of `lines`, if there are any, each connection adds one to its head, and the next one the next.
    """

    port: int
    head: bytes
    body: bytes
    connections: int
    habit: Habit
    lines: Sequence[bytes] = ()

    def request_head(self, number: int) -> bytes:
        """Write the head of a connection's request; the connection is for this one."""
        if self.habit is Habit.SILENT:
            return self.head
        own = self.lines[number % len(self.lines)] if self.lines else b""
        end = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(self.body)
        return self.head + own + end


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
    processes.tie_to_parent(signal.SIGKILL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8_192), most))
    asyncio.run(_besiege(siege, parent))


async def _besiege(siege: Siege, parent: Connection) -> None:
    answers: Counter[str] = Counter()
    habit = _HABITS[siege.habit]
    besiegers = [
        asyncio.create_task(_again(habit, siege, number, answers))
        for number in range(siege.connections)
    ]
    await asyncio.sleep(_HEAD_START_SECONDS)
    parent.send("up")
    await _readable(parent.fileno())
    parent.send(dict(answers))
    for besieger in besiegers:
        besieger.cancel()


async def _again(habit: "_Behaviour", siege: Siege, number: int, answers: "Counter[str]") -> None:
    while True:
        ended = "closed"
        with suppress(OSError), socket.socket() as connection:
            connection.settimeout(0)
            connection.bind((_ADDRESS, 0))
            if siege.habit is Habit.HOLD:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_WINDOW)
            async with asyncio.timeout(_ANSWER_SECONDS):
                loop = asyncio.get_running_loop()
                await loop.sock_connect(connection, ("127.0.0.1", siege.port))
                await loop.sock_sendall(connection, siege.request_head(number))
                ended = await habit(siege, connection)
        answers[ended] += 1


async def _drip(siege: Siege, connection: socket.socket) -> str:
    loop = asyncio.get_running_loop()
    answered = asyncio.ensure_future(loop.sock_recv(connection, _PIECE))
    for place in range(len(siege.body)):
        await loop.sock_sendall(connection, siege.body[place : place + 1])
        if (await asyncio.wait([answered], timeout=_DRIP_SECONDS))[0]:
            break
    return _status(await answered)


async def _hold(siege: Siege, connection: socket.socket) -> str:
    await asyncio.get_running_loop().sock_sendall(connection, siege.body)
    # Readable as soon as the service has hung up, whatever of its answer is there to read.
    with select.epoll() as gone:
        gone.register(connection, select.EPOLLRDHUP)
        await _readable(gone.fileno())
    return "closed"


async def _repeat(siege: Siege, connection: socket.socket) -> str:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, siege.body)
    status = _status(await loop.sock_recv(connection, _PIECE))
    while await loop.sock_recv(connection, _PIECE):
        pass
    return status


async def _drop(siege: Siege, connection: socket.socket) -> str:
    await asyncio.get_running_loop().sock_sendall(connection, siege.body)
    await asyncio.sleep(_DROP_SECONDS)
    return "left"


async def _stay_silent(siege: Siege, connection: socket.socket) -> str:
    return _status(await asyncio.get_running_loop().sock_recv(connection, _PIECE))


async def _readable(number: int) -> None:
    """Wait until a file descriptor can be read."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(number, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(number)


def _status(answer: bytes) -> str:
    match = _STATUS.match(answer)
    return match[1].decode() if match else "closed"


_Behaviour: TypeAlias = Callable[[Siege, socket.socket], Awaitable[str]]
_HABITS: Mapping[Habit, _Behaviour] = {
    Habit.DRIP: _drip,
    Habit.HOLD: _hold,
    Habit.REPEAT: _repeat,
    Habit.DROP: _drop,
    Habit.SILENT: _stay_silent,
}
