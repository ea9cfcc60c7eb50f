"""Request bodies read by the event loop, with a deadline and a least rate."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]


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


async def read(receive: Receive, pace: Pace, most: int) -> bytes:
    """Read a body; of one that is longer than `most` bytes, at least one byte more than that.

    Raises `BodyTooSlow` and `BodyCutShort`.
    """
    began = asyncio.get_running_loop().time()
    pieces: list[bytes] = []
    size = 0
    more = True
    try:
        async with asyncio.timeout_at(began + pace.seconds) as deadline:
            while more and size <= most:
                message = await receive()
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
