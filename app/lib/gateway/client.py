"""The other end of a request: whether it is still there while its request waits."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]


class ClientLeft(Exception):
    """The client has closed its connection: nobody waits for an answer."""


class Client:
    """A client whose leaving shows once its body is read: ASGI tells both on one channel.

    Set `body_is_read` then. Only a request that waits pays for the look. `is_awaited` says whether
    the client has to send or to read before anything happens.
    """

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self._leaving: asyncio.Future[Any] | None = None
        self.body_is_read = False
        self.is_awaited = False

    def leaving(self) -> "asyncio.Future[Any]":
        """Return a future that is done when the client has left."""
        if not self.body_is_read:
            return asyncio.get_running_loop().create_future()
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._until_left())
        return self._leaving

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Wait for the client for the length of a `with`."""
        self.is_awaited = True
        try:
            yield
        finally:
            self.is_awaited = False

    async def stays(self, seconds: float) -> None:
        """Wait for so long; raises `ClientLeft` as soon as the client has left."""
        if (await asyncio.wait((self.leaving(),), timeout=seconds))[0]:
            raise ClientLeft

    def close(self) -> None:
        """Stop looking. The server closes the connection only once nothing refers to it."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    async def _until_left(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
