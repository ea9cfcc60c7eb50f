"""The receivers that deliveries are sent to, and how many have arrived.

Rates are measured against nginx where it is installed, else against our own (`receiver`).
Latencies are always measured against our own, which knows when each one came.
"""

import http.client
import json
import shutil
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.processes import until
from dev import processes
from dev.stores.store import free_port

_START_SECONDS = 10.0

_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000000; client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location /count {{ stub_status; }}
        location / {{ return 204; }}
    }}
}}
"""


class Receiver(ABC):
    """A server on this machine that answers POSTs at once."""

    name: str

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def url(self, path: str = "/ok") -> str:
        """Return the address of a path here."""
        return f"http://127.0.0.1:{self.port}{path}"

    @abstractmethod
    def count(self) -> int:
        """Return how many POSTs have arrived since it began."""

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until so many POSTs have arrived; notices it within 20 ms."""
        until(lambda: self.count() >= count, seconds, f"{count} POSTs at {self.name}")

    def _get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        return self._connection.getresponse().read()


class OwnReceiver(Receiver):
    """`bench.traffic.receiver`, over loopback."""

    name = "own receiver (uvloop, 1 process)"

    def count(self) -> int:
        """Return how many POSTs have arrived."""
        return int(self._get("/count"))

    def pace(self, name: str, seconds: float) -> str:
        """Return the address of a path whose POSTs are answered so late from now on."""
        self._get(f"/pace/{name}/{seconds}")
        return self.url(f"/paced/{name}")

    def crowd(self, name: str) -> dict[str, Any]:
        """Return what came to a path since its pace was set: see `bench.traffic.receiver.Paced`."""
        found: dict[str, Any] = json.loads(self._get(f"/crowd/{name}"))
        return found

    def arrivals(self) -> list[dict[str, Any]]:
        """Return what came to `/stamp` since this was asked last."""
        found: list[dict[str, Any]] = json.loads(self._get("/arrivals"))
        return found


class Nginx(Receiver):
    """nginx with one worker, answering 204."""

    name = "nginx (1 process)"

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._asked = 0

    def count(self) -> int:
        """Return how many requests it counts, without our own questions."""
        self._asked += 1
        words = self._get("/count").split()
        # "server accepts handled requests", then the three totals.
        return int(words[9]) - self._asked


@contextmanager
def own() -> Iterator[OwnReceiver]:
    """Run our own receiver."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        descriptor = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.traffic.receiver", str(descriptor)],
            pass_fds=[descriptor],
            # Ctrl-C is for the bench, which then ends this one.
            start_new_session=True,
        )
        port: int = listening.getsockname()[1]
    try:
        yield OwnReceiver(port)
    finally:
        process.kill()
        process.wait()


@contextmanager
def nginx(program: str, folder: Path) -> Iterator[Nginx]:
    """Run nginx from the program at that path."""
    port = free_port()
    folder.mkdir()
    configuration = folder / "nginx.conf"
    configuration.write_text(_NGINX.format(folder=folder, port=port))
    with (folder / "log").open("wb") as log:
        process = processes.start(
            [program, "-p", str(folder), "-c", str(configuration)], env={}, output=log
        )
    try:
        until(lambda: listens(port), _START_SECONDS, "nginx")
        yield Nginx(port)
    finally:
        processes.stop(process)


@contextmanager
def fastest(folder: Path, ours: OwnReceiver) -> Iterator[Receiver]:
    """Run the receiver that rates are measured against: nginx if there is one, else ours."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        yield ours
        return
    with nginx(program, folder) as found:
        yield found


def listens(port: int) -> bool:
    """Say whether a server accepts connections on a port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True
