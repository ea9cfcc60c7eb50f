"""A leader that is killed takes its processes with it: web and worker, as the Procfile has them."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.support.faults import LONG_ENOUGH, OwnValkey, until
from tests.support.programs import processes
from tests.support.servers.ports import own_port


@contextmanager
def started(
    name: str, environ: dict[str, str], log: Path, is_up: Callable[[], bool]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a line of the Procfile and wait until it is up; kill what is left in the end."""
    with log.open("wb") as output:
        leader = processes.start(name, environ, output)
    try:
        until(lambda: is_up() or leader.poll() is not None)
        assert leader.poll() is None, log.read_text("utf-8", "replace")
        yield leader
    finally:
        left = [pid for pid in (leader.pid, *group(leader.pid)) if processes.runs(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        leader.wait(LONG_ENOUGH)


def group(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if os.getsid(int(folder.name)) == session:
                    found.append(int(folder.name))
            except ProcessLookupError:
                continue
    return found


def is_free(port: int) -> bool:
    """Say whether a port can be bound; connections that were closed may linger."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_the_port_of_a_killed_web_leader_is_free(environ: dict[str, str], tmp_path: Path) -> None:
    port = own_port()
    own = {**environ, "HOST": "127.0.0.1", "PORT": str(port)}

    def answers() -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{port}/healthz", timeout=LONG_ENOUGH).ok
        except requests.ConnectionError:
            return False

    with started("web", own, tmp_path / "web.log", answers) as leader:
        children = processes.children(leader.pid)
        assert len(children) == 2
        leader.kill()
        until(lambda: not any(map(processes.runs, [leader.pid, *children])))
        until(lambda: is_free(port))


def test_a_killed_worker_leader_leaves_no_consumer(
    environ: dict[str, str], own_valkey: OwnValkey, tmp_path: Path
) -> None:
    own = {**environ, "REDIS_URL": own_valkey.url}

    def consumes() -> bool:
        return bool(own_valkey.client.zcard("dramatiq:__heartbeats__") == 2)

    with started("worker", own, tmp_path / "worker.log", consumes) as leader:
        children = processes.children(leader.pid)
        assert len(children) == 2
        leader.kill()
        until(lambda: not any(map(processes.runs, children)))
