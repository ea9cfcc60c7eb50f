"""The service on a socket, for the client, and the command."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from flask import Flask
from werkzeug.serving import make_server

from app.dev.stack import ROOT
from tests.support.callers.api import FreshTenant


@dataclass(frozen=True)
class Ran:
    """How a run of the command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Ran]


@pytest.fixture(scope="module")
def base_url(app: Flask) -> Iterator[str]:
    """Serve the application on a port of this machine."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the command remembers, empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "record-service"


@pytest.fixture
def records(
    base_url: str, tenant: FreshTenant, state: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Return the command, in a process of its own, with the root key of this test's tenant."""
    monkeypatch.setenv("SERVICE_BASE_URL", base_url)
    monkeypatch.setenv("SERVICE_API_KEY", tenant.root_key)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "client"))

    def command(*arguments: str, stdin: bytes = b"") -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "records", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return command
