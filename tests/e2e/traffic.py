"""Findings posted without pause, and neighbours that note every event they take.

A poster counts a finding as accepted once a 2xx said so, and not before: whatever else happens, it
sends the same request again under the same Idempotency-Key, as a careful client does.
"""

import itertools
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

import requests

from tests.e2e.stack import Caller
from tests.receivers import OK, Listener, http_answer, read_request

_UNAVAILABLE = http_answer(500)
_STALL_SECONDS = 20.0
_DRIP_SECONDS = 0.5


class Neighbour(Listener):
    """A receiver that notes what it takes, and may be told to behave badly for a while.

    What it answers with 2xx it has taken; a second time the same event is a duplicate.
    """

    def __init__(self, *, delay: float = 0.0, fails_every: int = 0) -> None:
        """Answer after `delay` seconds; answer 500 to each `fails_every`th request, if not 0."""
        self.taken: Counter[str] = Counter()
        self.findings: set[str] = set()
        self.sequences: set[int] = set()
        self.first_at: dict[str, float] = {}
        self._misbehave: Callable[[socket.socket], None] | None = None
        self._delay = delay
        self._fails_every = fails_every
        self._count = itertools.count(1)
        self._noting = threading.Lock()
        self.well = threading.Event()
        self.behave()
        super().__init__(self._converse)

    @property
    def duplicates(self) -> int:
        """How many times an event was taken again."""
        return self.taken.total() - len(self.taken)

    def behave(self) -> None:
        """Answer as a good receiver from now on; what is held up is let go."""
        self._misbehave = None
        self.well.set()

    def reset(self) -> None:
        """Break every connection off, with a reset, once the request is there."""
        self._turn_bad(_reset)

    def stall(self) -> None:
        """Take requests and say nothing."""
        self._turn_bad(lambda _: self.well.wait(_STALL_SECONDS) and None)

    def drip(self) -> None:
        """Answer a byte of a header now and then, without end."""
        self._turn_bad(self._drip)

    def _turn_bad(self, way: Callable[[socket.socket], None]) -> None:
        self.well.clear()
        self._misbehave = way

    def _drip(self, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self.well.wait(_DRIP_SECONDS):
            connection.sendall(b"a")

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while request := read_request(stream):
                misbehave = self._misbehave
                if misbehave is not None:
                    misbehave(connection)
                    return
                if self._delay:
                    time.sleep(self._delay)
                if self._fails_every and next(self._count) % self._fails_every == 0:
                    connection.sendall(_UNAVAILABLE)
                    continue
                self._note(request.headers, request.body)
                connection.sendall(OK)

    def _note(self, headers: Any, body: bytes) -> None:
        event = headers["webhook-id"]
        finding = body.partition(b'"data":')[2].partition(b'"id":"')[2].partition(b'"')[0]
        with self._noting:
            self.taken[event] += 1
            self.first_at.setdefault(finding.decode(), time.monotonic())
            self.findings.add(finding.decode())
            if "x-service-sequence" in headers:
                self.sequences.add(int(headers["x-service-sequence"]))


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # The stream that the request was read from keeps the descriptor: only this closes it now.
    connection.detach_with_reset() if hasattr(connection, "detach_with_reset") else None


@dataclass
class Log:
    """What the posters saw."""

    accepted: list[str] = field(default_factory=list)
    repeats: int = 0
    slowest: float = 0.0
    surprises: list[str] = field(default_factory=list)
