"""Answers of a WSGI application: made by a thread, sent by the event loop at the reader's pace."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeAlias

from app.lib.gateway.requests import Message, Pace

Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

PIECE = 64 * 1024


class ReaderTooSlow(Exception):
    """The reader fell behind the least rate."""


class Answer:
    """The application's response: a status, header fields, and its body as far as it was made.

    `piece` is the part of the body that comes next, and `whole` says that none follows it.
    """

    __slots__ = ("_close", "_parts", "headers", "piece", "status", "whole")

    def __init__(self, application: Application, environ: dict[str, Any]) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.piece = b""
        self.whole = False
        parts = application(environ, self._start)
        self._parts: Iterator[bytes] = iter(parts)
        self._close: Callable[[], None] | None = getattr(parts, "close", None)
        self.pull()
        if self.is_small:
            self.close()

    @property
    def closed(self) -> bool:
        """Whether the application has been told, or does not want to hear of it."""
        return self._close is None

    @property
    def is_small(self) -> bool:
        """Whether it is whole and goes out in one message."""
        return self.whole and len(self.piece) <= PIECE

    def header(self, name: bytes) -> str | None:
        """Return the value of a header field, named in lower case."""
        found = (value.decode("latin-1") for field, value in self.headers if field == name)
        return next(found, None)

    def pull(self) -> None:
        """Have the application make the next piece: at least `PIECE` bytes, or what is left."""
        pieces: list[bytes] = []
        size = 0
        for part in self._parts:
            pieces.append(part)
            size += len(part)
            if size >= PIECE:
                break
        else:
            self.whole = True
        self.piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Tell the application that its answer has been sent or given up (PEP 3333)."""
        if self._close is not None:
            close, self._close = self._close, None
            close()

    def settle(self, status: int, body: bytes) -> None:
        """Put another status and body in the place of those made."""
        size = str(len(body)).encode()
        kept = [pair for pair in self.headers if pair[0] != b"content-length"]
        self.headers = [*kept, (b"content-length", size)]
        self.status, self.piece, self.whole = status, body, True

    def _start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        self.status = int(status[:3])
        self.headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers
        ]


async def _nothing_more() -> None:
    """Stand for the further pieces of an answer that has none."""


async def send(
    answer: Answer,
    transmit: Send,
    pace: Pace,
    more: Callable[[], Awaitable[None]] = _nothing_more,
) -> None:
    """Send an answer in messages of `PIECE`, calling `more` for each next piece of it.

    One of a single message, which the server's buffer holds, leaves at once. The application's own
    time does not count against the reader. Raises `ReaderTooSlow`.
    """
    await transmit(
        {"type": "http.response.start", "status": answer.status, "headers": answer.headers}
    )
    if answer.is_small:
        await transmit({"type": "http.response.body", "body": answer.piece, "more_body": False})
        return
    clock = asyncio.get_running_loop().time
    sent, spent, last = 0, 0.0, False
    while True:
        for at in range(0, len(answer.piece) or 1, PIECE):
            part = answer.piece[at : at + PIECE]
            last = answer.whole and at + PIECE >= len(answer.piece)
            began = clock()
            try:
                async with asyncio.timeout(pace.allowed(sent) - spent):
                    await transmit(
                        {"type": "http.response.body", "body": part, "more_body": not last}
                    )
            except TimeoutError:
                raise ReaderTooSlow from None
            spent += clock() - began
            sent += len(part)
        if last:
            return
        await more()
