"""A pooler such as PgBouncer: its keys for cancelling are not those of the server."""

import contextlib
import socket
import threading

from sqlalchemy import URL

from tests.support.servers.receivers import Listener

# PostgreSQL, protocol 3.0: BackendKeyData is "K", a length, the process id and a secret.
_HEAD = 5
_KEY = b"K"


class Pooler(Listener):
    """Passes one connection after the other on to a server; clients must not ask for TLS."""

    def __init__(self, server: URL) -> None:
        self._server = (server.host or "", server.port or 5432)
        super().__init__(self._pass_on)

    def _pass_on(self, client: socket.socket) -> None:
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
