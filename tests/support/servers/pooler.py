"""A pooler such as PgBouncer: its keys for cancelling are not those of the server."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from sqlalchemy import URL

from tests.support.servers.receivers import Listener

# PostgreSQL, protocol 3.0: BackendKeyData is "K", a length, the process id and a secret.
_HEAD = 5
_KEY = b"K"


class Pooler:
    """Passes one connection after the other on to a server; clients must not ask for TLS."""

    def __init__(self, server: URL) -> None:
        self._server = (server.host or "", server.port or 5432)
        self._listener = Listener(self._serve)
        self.port = self._listener.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection(self._server) as server, contextlib.suppress(OSError):
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            with server.makefile("rb") as answers:
                while head := answers.read(_HEAD):
                    body = answers.read(int.from_bytes(head[1:], "big") - 4)
                    if head[:1] == _KEY:
                        body = bytes(4) + body[4:]
                    client.sendall(head + body)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
