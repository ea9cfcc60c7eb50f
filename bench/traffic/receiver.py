"""A receiver that records arrivals: one process, on uvloop.

`python -m bench.traffic.receiver FD` serves the listening socket FD until its parent ends. POST:
`/ok` and `/stamp` (recorded) 204, `/hang` after 20 s, `/refuse` 400, `/paced/NAME` after the delay
set by `GET /pace/NAME/SECONDS`. GET: `/count` the number of POSTs, `/arrivals` those to `/stamp`,
`/crowd/NAME` those to `/paced/NAME`.
"""

import asyncio
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import uvloop

from bench.processes import until
from dev import processes

HANG_SECONDS = 20.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PACE = re.compile(rb"GET /pace/(\w+)/([\d.]+) ")
_CROWD = re.compile(rb"GET /crowd/(\w+) ")
_PACED = re.compile(rb"POST /paced/(\w+) ")
_HEAD_END = b"\r\n\r\n"
_REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
_NO_CONTENT = b"HTTP/1.1 204 No Content\r\nServer: bench\r\n\r\n"


@dataclass
class Paced:
    """What came to one path: POSTs out now and at most, first arrival, and when each was answered.

    Times are seconds since the epoch.
    """

    seconds: float = 0.0
    out: int = 0
    most: int = 0
    began: float | None = None
    answered: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Count a POST that has come."""
        self.out += 1
        self.most = max(self.most, self.out)
        self.began = self.began or time.time()

    def end(self) -> None:
        """Count a POST that is answered."""
        self.out -= 1
        self.answered.append(time.time())


@dataclass
class Seen:
    """What has arrived, on all connections."""

    posts: int = 0
    stamped: list[tuple[float, bytes]] = field(default_factory=list)
    paced: defaultdict[str, Paced] = field(default_factory=lambda: defaultdict(Paced))

    def pace(self, name: str, seconds: float) -> None:
        """Have POSTs to a path answered so late from now on; what came there is forgotten."""
        self.paced[name] = Paced(seconds)

    def hand_over(self) -> list[dict[str, str | float]]:
        """Return what was stamped, oldest first, and forget it.

        Each has the `rule` of its finding, the `event`'s own timestamp, and the time of `arrival`
        in seconds since the epoch.
        """
        stamped, self.stamped = self.stamped, []
        return [_arrival(at, json.loads(body)) for at, body in stamped]


def _arrival(at: float, event: dict[str, dict[str, str]]) -> dict[str, str | float]:
    return {"rule": event["data"]["rule"], "event": str(event["timestamp"]), "arrival": at}


class Conversation(asyncio.Protocol):
    """One kept-alive connection."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._transport: asyncio.Transport
        self._unread = b""
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        # uvloop's transports do not come from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request that has come whole."""
        if not self._unread:
            self._began = time.time()
        self._unread += data
        while (end := self._unread.find(_HEAD_END)) >= 0:
            length = _LENGTH.search(self._unread, 0, end + 2)
            stop = end + 4 + (int(length[1]) if length else 0)
            if len(self._unread) < stop:
                return
            self._answer(self._unread[:end], self._unread[end + 4 : stop])
            self._unread = self._unread[stop:]

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /count "):
            self._say(self._seen.posts)
        elif head.startswith(b"GET /arrivals "):
            self._say(self._seen.hand_over())
        elif head.startswith(b"POST /hang "):
            asyncio.get_running_loop().call_later(HANG_SECONDS, self._answer_late)
        elif match := _PACE.match(head):
            self._seen.pace(match[1].decode(), float(match[2]))
            self._say(None)
        elif match := _CROWD.match(head):
            self._say(asdict(self._seen.paced[match[1].decode()]))
        elif match := _PACED.match(head):
            self._answer_paced(self._seen.paced[match[1].decode()])
        else:
            self._seen.posts += 1
            if head.startswith(b"POST /stamp "):
                self._seen.stamped.append((self._began, body))
            refused = head.startswith(b"POST /refuse ")
            self._transport.write(_REFUSED if refused else _NO_CONTENT)

    def _answer_paced(self, paced: Paced) -> None:
        paced.begin()
        asyncio.get_running_loop().call_later(paced.seconds, self._end_paced, paced)

    def _end_paced(self, paced: Paced) -> None:
        paced.end()
        self._answer_late()

    def _answer_late(self) -> None:
        # Who waited may have lost patience.
        if not self._transport.is_closing():
            self._transport.write(_NO_CONTENT)

    def _say(self, value: object) -> None:
        body = json.dumps(value).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


class Receiver:
    """The receiver as the bench asks it: where it is, and what has arrived."""

    name = "uvloop (1 process)"

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def url(self, path: str = "/ok") -> str:
        """Return the address of a path here."""
        return f"http://127.0.0.1:{self.port}{path}"

    def count(self) -> int:
        """Return how many POSTs have arrived since it began."""
        return int(self._get("/count"))

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until so many POSTs have arrived; notices it within 20 ms."""
        until(lambda: self.count() >= count, seconds, f"{count} POSTs at the receiver")

    def pace(self, name: str, seconds: float) -> str:
        """Return the address of a path whose POSTs are answered so late from now on."""
        self._get(f"/pace/{name}/{seconds}")
        return self.url(f"/paced/{name}")

    def crowd(self, name: str) -> dict[str, Any]:
        """Return what came to a path since its pace was set: see `Paced`."""
        found: dict[str, Any] = json.loads(self._get(f"/crowd/{name}"))
        return found

    def arrivals(self) -> list[dict[str, Any]]:
        """Return what came to `/stamp` since this was asked last."""
        found: list[dict[str, Any]] = json.loads(self._get("/arrivals"))
        return found

    def _get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        return self._connection.getresponse().read()


@contextmanager
def running() -> Iterator[Receiver]:
    """Run the receiver for the length of a `with`."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        descriptor = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.traffic.receiver", str(descriptor)],
            pass_fds=[descriptor],
            # Ctrl-C is for the bench, which then ends this one.
            start_new_session=True,
        )
        port: int = listening.getsockname()[1]
    try:
        yield Receiver(port)
    finally:
        process.kill()
        process.wait()


async def _serve(descriptor: int) -> None:
    seen = Seen()
    loop = asyncio.get_running_loop()
    listening = socket.socket(fileno=descriptor)
    server = await loop.create_server(lambda: Conversation(seen), sock=listening, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    processes.tie_to_parent(signal.SIGKILL)
    uvloop.run(_serve(int(sys.argv[1])))
