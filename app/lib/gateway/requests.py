"""Requests as an ASGI server passes them on: the client, the body, and a WSGI environ of them.

Bodies are read by the event loop, with a deadline and a least rate. PEP 3333; ASGI HTTP
specification 2.3.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

# A longer body waits for memory, and one of a length that is not known.
SMALL = 64 * 1024

# CGI gives these two their own names (RFC 3875 sections 4.1.2, 4.1.3).
_CGI = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}
# granian writes 1.0 as 1.
_PROTOCOLS = {"1": "HTTP/1.0", "1.0": "HTTP/1.0"}

_FIXED: Mapping[str, Any] = {
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
    # The stream ends where the body does, whatever its length was declared to be.
    "wsgi.input_terminated": True,
}


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


# Few: whoever sends may invent them, and each may be long.
@lru_cache(maxsize=128)
def _name(raw: bytes) -> str:
    return _CGI.get(raw) or f"HTTP_{raw.decode('latin-1').upper().replace('-', '_')}"


def environ(scope: Mapping[str, Any], stream: object) -> dict[str, Any]:
    """Return the WSGI environ of an ASGI `http` scope, with `stream` as `wsgi.input`.

    A field name with an underscore is left out: it would be taken for one with a hyphen.
    """
    host, port = scope.get("server") or ("", "")
    query = scope["query_string"].decode("latin-1")
    path = scope["raw_path"].decode("latin-1")
    client = scope.get("client") or ("", "")
    made = {
        **_FIXED,
        "REQUEST_METHOD": scope["method"],
        "PATH_INFO": unquote_to_bytes(scope["raw_path"]).decode("latin-1"),
        "QUERY_STRING": query,
        # As gunicorn calls it: the target as it was sent.
        "RAW_URI": f"{path}?{query}" if query else path,
        "SERVER_PROTOCOL": _PROTOCOLS.get(scope["http_version"], "HTTP/1.1"),
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "REMOTE_ADDR": client[0],
        "REMOTE_PORT": str(client[1]),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": stream,
    }
    for raw, text in scope["headers"]:
        if b"_" not in raw:
            name = _name(raw)
            value = text.decode("latin-1")
            made[name] = f"{made[name]},{value}" if name in made else value
    return made
