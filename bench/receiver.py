"""A receiver that answers at once and remembers when what arrived: one process, on uvloop.

`python -m bench.receiver FD` serves the listening socket FD until its parent ends. A POST to `/ok`
is answered 204, and so is one to `/stamp`, whose body is kept with the moment it came; one to
`/hang` is answered after 20 s. `GET /count` says how many POSTs came, `GET /arrivals` hands over
what `/stamp` kept.
"""

import asyncio
import json
import re
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import cast

import uvloop

from app.dev import keeper

HANG_SECONDS = 20.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_NO_CONTENT = b"HTTP/1.1 204 No Content\r\nServer: bench\r\n\r\n"


@dataclass
class Seen:
    """What has arrived, on all connections."""

    posts: int = 0
    stamped: list[tuple[float, bytes]] = field(default_factory=list)

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
        else:
            self._seen.posts += 1
            if head.startswith(b"POST /stamp "):
                self._seen.stamped.append((self._began, body))
            self._transport.write(_NO_CONTENT)

    def _answer_late(self) -> None:
        # Who waited may have lost patience.
        if not self._transport.is_closing():
            self._transport.write(_NO_CONTENT)

    def _say(self, value: object) -> None:
        body = json.dumps(value).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def _serve(descriptor: int) -> None:
    seen = Seen()
    loop = asyncio.get_running_loop()
    listening = socket.socket(fileno=descriptor)
    server = await loop.create_server(lambda: Conversation(seen), sock=listening, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    keeper.tie_to_parent(signal.SIGKILL)
    uvloop.run(_serve(int(sys.argv[1])))
