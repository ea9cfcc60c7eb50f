"""`make demo` on real processes: its verdict, its staying, and what it does when it cannot."""

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.stack import ROOT
from tests.e2e.harness.stack import ONE_OF_EACH, PLAIN, remove_data
from tests.support.faults import until
from tests.support.servers.ports import own_port

pytestmark = [pytest.mark.stacks, pytest.mark.toolbox]

# A guard, no measure.
SECONDS = 300.0


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Remove what the demos of a test leave outside its folder."""
    yield
    remove_data(tmp_path / "data")


@contextmanager
def demo(folder: Path, **settings: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a demo; what it says goes into one file and what it complains of into another."""
    environ = {**PLAIN, **ONE_OF_EACH, "DATA_DIR": str(folder / "data"), **settings}
    with (folder / "said").open("wb") as said, (folder / "complaints").open("wb") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "dev.demo"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complaints,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def said(folder: Path) -> str:
    return (folder / "said").read_text("utf-8")


def complaints(folder: Path) -> list[str]:
    return (folder / "complaints").read_text("utf-8").strip().splitlines()


def test_every_claim_is_met_and_a_second_run_stays_until_it_is_interrupted(tmp_path: Path) -> None:
    port = str(own_port())
    with demo(tmp_path, PORT=port, STAY="0") as first:
        assert first.wait(SECONDS) == 0, said(tmp_path)
    assert "claims were checked, and all of them hold" in said(tmp_path)
    assert not (tmp_path / "data" / "env").exists()

    # In the same folder, where the first one's webhooks still are.
    with demo(tmp_path, PORT=port) as second:
        until(lambda: "It stays up" in said(tmp_path) or second.poll() is not None, SECONDS)
        until(lambda: "curl -H" in said(tmp_path))
        assert f"http://127.0.0.1:{port}/console\n    sign in with svc_" in said(tmp_path)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/docs", timeout=60) as page:
            assert page.status == 200
        second.send_signal(signal.SIGINT)
        assert second.wait(SECONDS) == 0, said(tmp_path)
    assert complaints(tmp_path) == []
    with socket.create_server(("127.0.0.1", int(port))):
        assert not (tmp_path / "data" / "env").exists()


def test_an_unmet_claim_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    # Its receivers are on this machine, to which these settings let nothing be sent.
    settings = {"PORT": str(own_port()), "WEBHOOK_ALLOWED_NETWORKS": "10.0.0.0/8"}
    with demo(tmp_path, **settings) as process:
        assert process.wait(SECONDS) == 1
    (line,) = complaints(tmp_path)
    assert line.startswith("demo: NOT MET: POST /v1/webhooks is answered well (it was 422:")


def test_a_taken_port_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with demo(tmp_path, PORT=str(port)) as process:
            assert process.wait(SECONDS) == 1
    assert complaints(tmp_path) == [f"demo: port {port} is taken: set PORT to a free one"]


def test_interrupted_at_its_start_it_ends_and_says_so(tmp_path: Path) -> None:
    with demo(tmp_path, PORT=str(own_port())) as process:
        until(lambda: "Starting" in said(tmp_path))
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 130
    assert complaints(tmp_path) == ["demo: interrupted before its end"]
