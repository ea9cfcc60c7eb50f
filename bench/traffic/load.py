"""The load: HTTP/1.1 over raw sockets, so that the client costs little beside what it measures.

One process drives a plan over kept-alive connections. Without a rate (closed loop) the next
request follows the response. With a rate (open loop) requests have fixed times and latency counts
from them, so that a stall counts for each request delayed.
"""

import re
import selectors
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Self

from dev import processes

# In a body, the place of the request's number: nine digits.
NUMBER = b"#########"

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PIECE = 256 * 1024
_ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Plan:
    """What one process sends: `count` requests or as many as start within `seconds`.

    `rate` is in requests per second, None for as fast as answers come. The requests are numbered
    from `first` on.
    """

    port: int
    head: bytes
    body: bytes
    connections: int
    first: int = 0
    count: int | None = None
    seconds: float | None = None
    rate: float | None = None

    def request(self, number: int) -> bytes:
        """Write one request."""
        body = self.body.replace(NUMBER, b"%09d" % number)
        return self.head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass(frozen=True)
class Answer:
    """One request: its number, when it was due and when answered (seconds since the epoch)."""

    number: int
    due: float
    answered: float


@dataclass
class Tally:
    """What became of a plan; `refusal` is the first answer that was not 2xx."""

    answers: list[Answer] = field(default_factory=list)
    refused: int = 0
    refusal: str = ""

    @property
    def latencies_ms(self) -> list[float]:
        """How long each answer took, in milliseconds."""
        return [(each.answered - each.due) * 1000 for each in self.answers]

    @property
    def per_second(self) -> float:
        """Good answers per second, from the first request to the last answer."""
        if not self.answers:
            return 0.0
        began = min(each.due for each in self.answers)
        return len(self.answers) / (max(each.answered for each in self.answers) - began)


class Load:
    """Two processes that drive plans; use it in a `with`."""

    PROCESSES = 2

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(
            self.PROCESSES,
            mp_context=get_context("spawn"),
            initializer=_begin,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def drive(self, plan: Plan) -> Tally:
        """Share a plan among the processes, and return what became of it."""
        return merge(self._pool.map(drive, share(plan, self.PROCESSES)))

    def drive_each(self, plans: Sequence[Plan]) -> list[Tally]:
        """Drive at most `PROCESSES` plans at the same time, each with a process of its own."""
        return list(self._pool.map(drive, plans))


def share(plan: Plan, processes: int) -> list[Plan]:
    """Cut a plan into equal ones whose numbers do not meet."""
    count = None if plan.count is None else -(-plan.count // processes)
    return [
        replace(
            plan,
            connections=max(1, plan.connections // processes),
            first=plan.first + index * (count or 100_000_000),
            count=None
            if plan.count is None
            else min(count or 0, plan.count - index * (count or 0)),
            rate=None if plan.rate is None else plan.rate / processes,
        )
        for index in range(processes)
    ]


def merge(tallies: Iterable[Tally]) -> Tally:
    """Put together what became of the shares of one plan."""
    whole = Tally()
    for tally in tallies:
        whole.answers += tally.answers
        whole.refused += tally.refused
        whole.refusal = whole.refusal or tally.refusal
    return whole


def head(method: str, path: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """Write a request's head but for its length, which the plan adds."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "".join(f"{line}\r\n" for line in lines).encode()


def drive(plan: Plan) -> Tally:
    """Drive a plan from this process."""
    driver = _Driver(plan)
    try:
        return driver.run()
    finally:
        driver.close()


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.tie_to_parent(signal.SIGKILL)


class _Connection:
    """One kept-alive connection, with at most one request under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = 0
        self.due = 0.0
        self._unread = b""

    def ask(self, number: int, due: float, request: bytes) -> None:
        self.number, self.due = number, due
        self.socket.sendall(request)

    def listen(self) -> tuple[int, bytes] | None:
        """Read what has come; return status and body once the answer is whole."""
        piece = self.socket.recv(_PIECE)
        if not piece:
            raise ConnectionError("the server closed the connection")
        self._unread += piece
        end = self._unread.find(b"\r\n\r\n")
        length = _LENGTH.search(self._unread, 0, end + 2) if end >= 0 else None
        if length is None or len(self._unread) < end + 4 + int(length[1]):
            return None
        whole, self._unread = self._unread, b""
        return int(whole[9:12]), whole[end + 4 :]


class _Driver:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tally = Tally()
        self._selector = selectors.DefaultSelector()
        self._free = [_Connection(plan.port) for _ in range(plan.connections)]
        self._all = list(self._free)
        for connection in self._all:
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._sent = 0
        self._began = time.time()

    def run(self) -> Tally:
        while self._send_what_is_due() or len(self._free) < len(self._all):
            ready = self._selector.select(self._patience())
            if not ready and not self._free:
                raise TimeoutError(f"no answer for {_ANSWER_SECONDS:g} s")
            for key, _ in ready:
                self._hear(key.data)
        return self._tally

    def close(self) -> None:
        for connection in self._all:
            connection.socket.close()
        self._selector.close()

    def _due(self) -> float:
        """Return when the next request is due."""
        if self._plan.rate is None:
            return time.time()
        return self._began + self._sent / self._plan.rate

    def _send_what_is_due(self) -> bool:
        """Send all that may leave now; say whether more is to come."""
        while self._more():
            due = self._due()
            if not self._free or due > time.time():
                return True
            number = self._plan.first + self._sent
            self._sent += 1
            self._free.pop().ask(number, due, self._plan.request(number))
        return False

    def _more(self) -> bool:
        if self._plan.count is not None and self._sent >= self._plan.count:
            return False
        if self._plan.seconds is None:
            return True
        return self._due() - self._began < self._plan.seconds

    def _patience(self) -> float:
        if self._free and self._more():
            return max(self._due() - time.time(), 0)
        return _ANSWER_SECONDS

    def _hear(self, connection: _Connection) -> None:
        answer = connection.listen()
        if answer is None:
            return
        status, body = answer
        self._free.append(connection)
        if 200 <= status < 300:
            self._tally.answers.append(Answer(connection.number, connection.due, time.time()))
            return
        self._tally.refused += 1
        self._tally.refusal = self._tally.refusal or f"{status} {body[:300]!r}"
