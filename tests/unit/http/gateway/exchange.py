"""One HTTP exchange with a gateway, without a server."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from app.lib.fair_shares import Shares
from app.lib.gateway.gateway import Gateway, Limits
from app.lib.gateway.requests import Pace

Environ = dict[str, Any]
Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
LONG = Pace(seconds=600, rate=1)
# Over before anything can be sent or read.
NO_TIME = Pace(seconds=0.001, rate=1e12)


class Exchange:
    """One request as an ASGI server passes it on: what has come of its body, and what was sent."""

    def __init__(self, method: str = "GET", path: str = "/", *headers: tuple[bytes, bytes]) -> None:
        self.scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"a=%20b",
            "headers": list(headers),
            "server": ("127.0.0.1", "8000"),
            "client": ("127.0.0.1", "9"),
        }
        self.arrived: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.asked = 0
        self.reads = True

    def with_body(self, *pieces: bytes, ends: bool = True) -> "Exchange":
        """Let the body come in pieces; without its end the sender falls silent after them."""
        last = len(pieces) - 1
        self.arrived = [
            {"type": "http.request", "body": piece, "more_body": not ends or number < last}
            for number, piece in enumerate(pieces)
        ]
        return self

    async def receive(self) -> dict[str, Any]:
        """Return what comes next, or wait for ever."""
        self.asked += 1
        if not self.arrived:
            await asyncio.Event().wait()
        return self.arrived.pop(0)

    async def send(self, message: Any) -> None:
        """Take a part of the answer; a reader that does not read takes the head alone."""
        if not self.reads and message["type"] == "http.response.body":
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        """The body of the answer, as far as it was sent."""
        return b"".join(message["body"] for message in self.sent[1:])


def served(
    exchange: Exchange,
    application: Application,
    *,
    body: Pace = LONG,
    answer: Pace = LONG,
    memory: Shares | None = None,
    most: int = 2**30,
) -> Exchange:
    """Serve one request."""
    limits = Limits(body, answer, memory or Shares(2**30, 2**30))
    asyncio.run(serve(Gateway(application, 2, limits, most=lambda made: most), exchange))
    return exchange


def gateway(application: Application, threads: int = 1, **options: Any) -> Gateway:
    """Return a gateway without limits of time."""
    return Gateway(application, threads, Limits(LONG, LONG, Shares(1, 1)), **options)


async def serve(gateway: Gateway, exchange: Exchange) -> None:
    """Serve one request of several."""
    await gateway(exchange.scope, exchange.receive, exchange.send)
