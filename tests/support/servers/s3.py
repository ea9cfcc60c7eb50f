"""A stand-in for S3, over a real socket: objects with ETags, and what RFC 9110 says of If-Match."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote


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
        path, _, asked = self.path.partition("?")
        if self.server.broken:
            self._answer(500)
        elif "list-type=2" in asked:
            self._list(path, unquote(parse_qs(asked).get("prefix", [""])[0]))
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

    def _list(self, bucket: str, prefix: str) -> None:
        """ListObjectsV2, in one page."""
        with self.server.lock:
            names = [name.removeprefix(f"{bucket}/") for name in sorted(self.server.objects)]
        listed = "".join(
            f"<Contents><Key>{name}</Key><Size>1</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name in names
            if name.startswith(prefix)
        )
        self._answer(200, f"<ListBucketResult>{listed}</ListBucketResult>".encode())

    def do_POST(self) -> None:
        """DeleteObjects, the one POST there is here."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        names = re.findall("<Key>([^<]*)</Key>", asked)
        bucket = self.path.partition("?")[0]
        with self.server.lock:
            for name in names:
                self.server.objects.pop(f"{bucket}/{name}", None)
        deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        self._answer(
            500 if self.server.broken else 200, f"<DeleteResult>{deleted}</DeleteResult>".encode()
        )

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


@contextmanager
def serving() -> Iterator[Objects]:
    """Serve for the length of a `with`."""
    with Objects() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
