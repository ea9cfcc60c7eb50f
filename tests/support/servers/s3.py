"""A stand-in for S3, over a real socket: objects with ETags, and what RFC 9110 says of If-Match."""

import hashlib
import threading
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.servers.receivers import served


class Objects(ThreadingHTTPServer):
    """The server; `objects` are its contents by path, `broken` makes it answer 500."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.broken = False
        self.lost_answers = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Objects
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        content = self.server.objects.get(self.path)
        if self.server.broken:
            self._answer(500)
        elif content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, content)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.broken:
            self._answer(500)
            return
        with self.server.lock:
            held = self.server.objects.get(self.path)
            match, none_match = self.headers["If-Match"], self.headers["If-None-Match"]
            refused = (match and (held is None or match.strip('"') != _tag(held))) or (
                none_match == "*" and held is not None
            )
            if not refused:
                self.server.objects[self.path] = content
        if refused:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        elif self.server.lost_answers:
            self.server.lost_answers -= 1
            self._answer(500)
        else:
            self._answer(200, tag=_tag(content))

    def _answer(self, status: int, content: bytes = b"", tag: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if status == 200:
            self.send_header("ETag", f'"{tag or _tag(content)}"')
        self.end_headers()
        self.wfile.write(content)


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def serving() -> AbstractContextManager[Objects]:
    """Serve for the length of a `with`."""
    return served(Objects())
