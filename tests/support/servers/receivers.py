"""Real servers on this machine to send to: well-behaved ones, broken ones and hostile ones.

`Listener` hands each connection to a function of the test and counts what reaches it. `Receiver` is
one that speaks HTTP/1.1, keeps what it got and answers as the test says.
"""

import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from io import BufferedReader
from types import TracebackType
from typing import Self, TypeVar

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


_Server = TypeVar("_Server", bound=ThreadingHTTPServer)


@contextmanager
def served(server: _Server) -> Iterator[_Server]:
    """Run a server of the standard library in a thread for the length of a `with`."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Listener:
    """A TCP or TLS server that gives each connection to `serve`, in a thread of its own.

    `connections` counts what was accepted, whether or not a TLS handshake followed.
    """

    def __init__(
        self,
        serve: Callable[[socket.socket], None],
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.connections = 0
        self._serve = serve
        self._tls = tls
        self._host = host
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="listener", daemon=True).start()

    def url(self, path: str = "/hook", host: str | None = None) -> str:
        """Return the URL of a path here, under another name of this machine if given."""
        return f"{'https' if self._tls else 'http'}://{host or self._host}:{self.port}{path}"

    def cut(self) -> None:
        """Cut every connection, and go on listening."""
        with self._lock:
            for connection in self._open:
                # Around TLS, which would begin a conversation about closing.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening and cut every connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        with self._lock:
            self._open.add(connection)
        # A client that goes away is what many a test wants.
        with contextlib.suppress(OSError), connection:
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            self._serve(connection)
        with self._lock:
            self._open.discard(connection)


@dataclass(frozen=True)
class Request:
    """What arrived; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def read_request(stream: BufferedReader) -> Request | None:
    """Read one request whose length is given; None when the client has closed."""
    line = stream.readline()
    if not line:
        return None
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers = {}
    while (line := stream.readline().rstrip(b"\r\n")) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return Request(method, path, headers, stream.read(int(headers.get("content-length", 0))))


def http_answer(
    status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """Write an HTTP/1.1 answer with its length."""
    lines = [f"HTTP/1.1 {status} Because", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


OK = http_answer(200)


class Receiver(Listener):
    """An HTTP server that keeps every request in `requests` and answers by `answer`.

    `answer` is the bytes to send each time, or a function from the `Request` to them; None closes
    the connection without a word, `Connection: close` among them after the last.
    """

    def __init__(
        self,
        answer: bytes | Callable[[Request], bytes | None] = OK,
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        super().__init__(self._converse, tls=tls, host=host, port=port)

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while request := read_request(stream):
                self.requests.append(request)
                answer = self._answer if isinstance(self._answer, bytes) else self._answer(request)
                if answer is None:
                    return
                connection.sendall(answer)
                if b"\r\nConnection: close\r\n" in answer:
                    return
