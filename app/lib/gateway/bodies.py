"""Request bodies read by the event loop, with a deadline and a least rate."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from app.lib.gateway.client import Client

# A longer body waits for memory, and one of a length that is not known.
SMALL = 64 * 1024


class BodyTooSlow(Exception):
    """The sender fell behind the least rate."""


class BodyCutShort(Exception):
    """The connection ended, or its chunks could not be read, before the body was whole."""


@dataclass(frozen=True)
class Pace:
    """A deadline that moves with the bytes: `seconds`, and one more for every `rate` bytes."""

    seconds: float
    rate: float

    def allowed(self, moved: int) -> float:
        """Return how many seconds a transfer may take that has moved so many bytes."""
        return self.seconds + moved / self.rate


@dataclass(frozen=True)
class Failed:
    """A body that could not be had, as `wsgi.input`."""

    error: Exception

    def __post_init__(self) -> None:
        """Forget where it failed: the frames hold the connection, and raising it makes a cycle.

        The server closes a connection only once its body is no longer referenced: it would stay
        open until a garbage collection.
        """
        self.error.__traceback__ = self.error.__context__ = None

    def read(self, size: int = -1) -> bytes:
        """Raise what went wrong."""
        raise self.error


def length(scope: Mapping[str, Any]) -> int | None:
    """Return the declared length of the body, 0 for none; None where it is not known or awaited.

    A sender that expects `100 Continue` gets it at the first read (RFC 9110 section 10.1.1): its
    request may be refused before.
    """
    found = 0
    for name, value in scope["headers"]:
        if name in (b"transfer-encoding", b"expect"):
            return None
        if name == b"content-length" and value.isdigit():
            found = int(value)
    return found


async def read(client: Client, pace: Pace, most: int) -> BytesIO | Failed:
    """Read a body; of one that is longer than `most` bytes, at least one byte more than that."""
    try:
        with client.awaited():
            body = await _read(client, pace, most)
    except (BodyTooSlow, BodyCutShort) as error:
        return Failed(error)
    client.body_is_read = len(body) <= most
    return BytesIO(body)


async def _read(client: Client, pace: Pace, most: int) -> bytes:
    began = asyncio.get_running_loop().time()
    pieces: list[bytes] = []
    size = 0
    more = True
    try:
        async with asyncio.timeout_at(began + pace.seconds) as deadline:
            while more and size <= most:
                message = await client.receive()
                if message["type"] == "http.disconnect":
                    raise BodyCutShort
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                more = message.get("more_body", False)
                if more:
                    deadline.reschedule(began + pace.allowed(size))
    except TimeoutError:
        raise BodyTooSlow from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
