"""A web process of the Procfile on the tests' database, and connections that behave badly."""

import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import requests

from dev import processes
from tests.e2e.harness.stack import PLAIN, START_SECONDS, Caller, is_healthy
from tests.support.faults import LONG_ENOUGH, until
from tests.support.programs.processes import start as procfile_line
from tests.support.servers.ports import own_port
from tests.support.servers.shared import Shared, shared

TOKEN = "t0ken"
JSON = "Content-Type: application/json"
SETTINGS = "/v1/tenant/settings"
THREADS = 4
FOR_EVER = "100000"
STEP: dict[str, Any] = {
    "name": "read the order",
    "kind": "tool",
    "started_at": "2026-01-31T12:00:00Z",
    "ended_at": "2026-01-31T12:00:01Z",
    "status": "ok",
    "attributes": {"note": "x" * 2_000},
}


class Web:
    """One web process that is up."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.base_url = f"http://127.0.0.1:{port}"

    def caller(self, key: str) -> Caller:
        """Return a caller with this key."""
        return Caller(self.base_url, key)

    def get(self, path: str, **headers: str) -> requests.Response:
        """GET `path` without a key, on a connection of its own."""
        return requests.get(self.base_url + path, headers=headers, timeout=LONG_ENOUGH)

    def connection(self, sent: bytes, *, window: int | None = None) -> socket.socket:
        """Open a connection and send something; `window` makes its receive buffer small."""
        opened = socket.socket()
        opened.settimeout(LONG_ENOUGH)
        if window is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        opened.connect(("127.0.0.1", self.port))
        opened.sendall(sent)
        return opened


@contextmanager
def serving(
    environ: Mapping[str, str], folder: Path, *, by_its_address: bool = False, **settings: str
) -> Iterator[Web]:
    """Run the Procfile's web line as one process with these settings.

    `by_its_address`: its BASE_URL is where it listens.
    """
    web = Web(own_port())
    own = {"HOST": "127.0.0.1", "PORT": str(web.port), "WEB_CONCURRENCY": "1", **settings}
    if by_its_address:
        own["BASE_URL"] = web.base_url
    log = folder / "web.log"
    started: list[subprocess.Popen[bytes]] = []
    answers = partial(is_healthy, web.base_url)

    def start() -> None:
        with log.open("ab") as output:
            started.append(procfile_line("web", {**PLAIN, **environ, **own}, output))
        until(lambda: answers() or started[-1].poll() is not None, START_SECONDS)
        assert started[-1].poll() is None, "the web process has ended"

    try:
        start()
        with shared(Shared("the web process", lambda: started[-1], log, start, answers)):
            yield web
    except BaseException:
        print(log.read_text("utf-8", "replace")[-20_000:])
        raise
    finally:
        for process in started:
            processes.stop(process, signal.SIGKILL)


def request(method: str, path: str, *headers: str, key: str | None = None) -> bytes:
    """Write the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: records.test", *headers]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def one_answer(connection: socket.socket) -> bytes:
    """Read one answer, by its Content-Length; the other side may leave the connection open."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(connection, received)
    head, _, body = received.partition(b"\r\n\r\n")
    (length,) = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while len(body) < length:
        body += _more(connection, body)
    return head + b"\r\n\r\n" + body


def _more(connection: socket.socket, received: bytes) -> bytes:
    piece = connection.recv(65_536)
    assert piece, f"the connection ended after {received!r}"
    return piece


def everything(connection: socket.socket) -> bytes:
    """Read until the other side closes; what a reset leaves is not missed."""
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def large_record(caller: Caller, steps: int = 400) -> str:
    """Post a record whose bundle has more than 800 KB; return its path.

    Bodies of the test before may still be held, and count: until there is room it asks again.
    """
    body = {"session_id": caller.session(), "kind": "k", "title": "t", "content": None}
    answers: list[requests.Response] = []

    def had_room() -> bool:
        answers.append(caller.ask("POST", "/v1/records", json={**body, "steps": [STEP] * steps}))
        return answers[-1].status_code != 503

    until(had_room)
    assert answers[-1].status_code == 201, answers[-1].text
    return f"/v1/records/{answers[-1].json()['id']}"
