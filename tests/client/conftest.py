"""The service on a socket, for the client, and the command."""

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from record_service import cli
from werkzeug.serving import WSGIRequestHandler, make_server

from app import logs
from app.settings import Settings
from dev.stack import ROOT
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_session


@dataclass(frozen=True)
class Ran:
    """How a run of the command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Ran]


class _Silent(WSGIRequestHandler):
    """Writes no log, which would be among the command's output."""

    def log(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Iterator[Settings]:
    """Return the settings of a service whose log keeps off the command's standard output."""
    yield replace(settings, log_level="CRITICAL")
    # The levels of a process are its last application's.
    logs.configure(settings)


@pytest.fixture(scope="module")
def base_url(app: Flask) -> Iterator[str]:
    """Serve the application on a port of this machine."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Silent)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture
def session(api: ApiOf) -> dict[str, Any]:
    """Return an open session."""
    return make_session(api())


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the command remembers, empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "record-service"


@pytest.fixture
def records(
    base_url: str, tenant: FreshTenant, state: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Return the command, in this process, with the root key of this test's tenant."""
    monkeypatch.setenv("SERVICE_BASE_URL", base_url)
    monkeypatch.setenv("SERVICE_API_KEY", tenant.root_key)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "client"))

    def command(*arguments: str) -> Ran:
        files = [io.BytesIO() for _ in range(3)]
        streams = [io.TextIOWrapper(each, "utf-8", write_through=True) for each in files]
        with monkeypatch.context() as replaced:
            replaced.setattr(sys, "argv", ["record-service", *arguments])
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                replaced.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        assert isinstance(ended.value.code, int)
        _, out, err = (each.getvalue().decode() for each in files)
        return Ran(ended.value.code, out, err)

    return command


@pytest.fixture
def records_process(records: Command) -> Command:
    """Return the command in a process of its own, with the environment of `records`."""

    def command(*arguments: str, stdin: bytes = b"") -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "record_service", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return command
