"""Findings posted without pause, and neighbours that note every event they take.

A poster counts a finding as accepted once a 2xx said so, and not before. Whatever else happens, it
sends the same request again under the same Idempotency-Key, as a careful client does.
"""

import itertools
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import requests

from tests.e2e.harness.stack import Caller
from tests.support.faults import LONG_ENOUGH, until
from tests.support.servers.receivers import OK, Listener, Request, http_answer, read_request

_STALL_SECONDS = 20.0
_DRIP_SECONDS = 0.5
_AGAIN_SECONDS = 0.1
_EVERY_SECONDS = 0.05
# The first request with this Idempotency-Key still runs, or the service is not all there.
_WORTH_REPEATING = {409, 502, 503, 504}
# One request in so many is a batch, of so many findings.
_BATCH_EVERY = 8
_BATCH = 5

Way = Callable[[socket.socket], None]


class Neighbour(Listener):
    """A receiver that notes what it takes, and may be told to behave badly for a while.

    What it answers with 2xx it has taken; the same event once more is a duplicate.
    """

    def __init__(
        self, name: str, *, delay: float = 0.0, fails_every: int = 0, host: str = "127.0.0.1"
    ) -> None:
        """Answer after `delay` seconds, and each `fails_every`th request with 500 (0: none)."""
        self.name = name
        self.taken: Counter[str] = Counter()
        self.sequences: set[int] = set()
        # When each finding was first taken, by its id.
        self.findings: dict[str, float] = {}
        # Requests, also those that were not answered.
        self.arrived = 0
        # How many of them came from each address, and how many have no answer yet.
        self.arrived_from: Counter[str] = Counter()
        self.in_hand_of: Counter[str] = Counter()
        self._bad_way: Way | None = None
        self._well = threading.Event()
        self._delay = delay
        self._fails_every = fails_every
        self._count = itertools.count(1)
        self._noting = threading.Lock()
        super().__init__(self._converse, host=host)

    @property
    def duplicates(self) -> int:
        """How many times an event was taken again."""
        return self.taken.total() - len(self.taken)

    @contextmanager
    def resetting(self) -> Any:
        """Break every connection off with a reset, once a request is there."""
        with self._behaving(_reset):
            yield

    @contextmanager
    def stalling(self) -> Any:
        """Take requests and say nothing."""
        with self._behaving(lambda _: _wait(self._well, _STALL_SECONDS)):
            yield

    @contextmanager
    def dripping(self) -> Any:
        """Answer one byte of a header now and then, without end."""
        with self._behaving(self._drip):
            yield

    @contextmanager
    def _behaving(self, way: Way) -> Any:
        self._well.clear()
        self._bad_way = way
        try:
            yield
        finally:
            self._bad_way = None
            self._well.set()

    def _drip(self, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self._well.wait(_DRIP_SECONDS):
            connection.sendall(b"a")

    def _converse(self, connection: socket.socket) -> None:
        sender: str = connection.getpeername()[0]
        with connection.makefile("rb") as stream:
            while request := read_request(stream):
                self.arrived += 1
                if self._bad_way is not None:
                    self._bad_way(connection)
                    return
                with self._held_by(sender):
                    answer = self._answer(request)
                connection.sendall(answer)

    @contextmanager
    def _held_by(self, sender: str) -> Any:
        with self._noting:
            self.arrived_from[sender] += 1
            self.in_hand_of[sender] += 1
        yield
        with self._noting:
            self.in_hand_of[sender] -= 1

    def _answer(self, request: Request) -> bytes:
        if self._delay:
            time.sleep(self._delay)
        if self._fails_every and next(self._count) % self._fails_every == 0:
            return http_answer(500)
        data = json.loads(request.body)["data"]
        with self._noting:
            self.taken[request.headers["webhook-id"]] += 1
            self.findings.setdefault(data.get("id", ""), time.monotonic())
            if "x-service-sequence" in request.headers:
                self.sequences.add(int(request.headers["x-service-sequence"]))
        return OK


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _wait(event: threading.Event, seconds: float) -> None:
    event.wait(seconds)


class Traffic:
    """Posts findings for the length of the `with`, and sees each of them accepted at the end."""

    def __init__(self, base_url: str, key: str, session_id: str) -> None:
        """Post with `key`, from each of two threads at most twenty requests a second."""
        self.accepted: list[str] = []
        # When each good answer came.
        self.accepted_at: list[float] = []
        # (when it began, how long it took) of each request, answered or not.
        self.asked: list[tuple[float, float]] = []
        # Why requests had to be repeated: the status, or that no answer came.
        self.repeats: Counter[str] = Counter()
        self.refusals: list[str] = []
        self._caller = (base_url, key)
        self._session_id = session_id
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._post_on, name=f"poster {number}", daemon=True)
            for number in range(2)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if error is None:
            self.end()

    def end(self) -> None:
        """Post no more, and wait until all that was posted is accepted."""
        self._over.set()
        for thread in self._threads:
            thread.join(LONG_ENOUGH)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"
        assert self.refusals == []

    def wait_for(self, more: int) -> None:
        """Wait until so many more findings are accepted."""
        enough = len(self.accepted) + more
        until(lambda: len(self.accepted) >= enough)

    def slowest_since(self, moment: float) -> float:
        """Return how long the slowest request took that began after `moment`."""
        return max((took for began, took in self.asked if began >= moment), default=0.0)

    def _post_on(self) -> None:
        caller = Caller(*self._caller)
        for number in itertools.count(1):
            self._post_until_accepted(caller, 1 if number % _BATCH_EVERY else _BATCH)
            if self._over.wait(_EVERY_SECONDS):
                return

    def _post_until_accepted(self, caller: Caller, count: int) -> None:
        finding = {"session_id": self._session_id, "rule": "r", "severity": "low", "title": "t"}
        path, body = (
            ("/v1/findings", finding)
            if count == 1
            else ("/v1/findings/batch", {"findings": [finding] * count})
        )
        key = {"Idempotency-Key": str(uuid4())}
        while not self._accepted(self._ask(caller, path, json=body, headers=key)):
            time.sleep(_AGAIN_SECONDS)

    def _accepted(self, answer: requests.Response | None) -> bool:
        """Note what an answer says; return whether the request is done with."""
        if answer is not None and answer.ok:
            made = answer.json()
            self.accepted_at.append(time.monotonic())
            self.accepted += [finding["id"] for finding in made.get("data") or [made]]
            return True
        if answer is None or answer.status_code in _WORTH_REPEATING:
            self.repeats["no answer" if answer is None else str(answer.status_code)] += 1
            return False
        self.refusals.append(answer.text)
        return True

    def _ask(self, caller: Caller, path: str, **options: Any) -> requests.Response | None:
        began = time.monotonic()
        try:
            return caller.ask("POST", path, **options)
        except requests.RequestException:
            return None
        finally:
            self.asked.append((began, time.monotonic() - began))
