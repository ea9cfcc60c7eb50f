"""What `make test` does with its passes, and with a server that tests share and that died."""

import re
import subprocess
from pathlib import Path

import pytest

from dev import processes
from tests.__main__ import ROOT, STACKS, run
from tests.support.faults import until
from tests.support.servers import shared
from tests.support.servers.shared import Shared

pytestmark = pytest.mark.toolbox

ONE_FAILS = """
import pathlib, pytest

def test_that_fails():
    assert False

def test_that_passes():
    pass

@pytest.mark.stacks
def test_of_the_second_pass():
    pathlib.Path("second").touch()
"""


# Those that the product's tests need only make each of these slow to begin.
BARE = ("-p", "no:schemathesis", "-p", "no:hypothesispytest", "-p", "no:xdist")
PASSES = ((*BARE, "-m", "not stacks"), (*BARE, "-m", "stacks"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['stacks: in the second pass']\n"
    )
    return tmp_path


def test_the_second_pass_runs_beside_one_that_fails_and_the_last_line_says_what_failed(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_it.py").write_text(ONE_FAILS)
    assert run(PASSES, 7, project) == 1
    assert (project / "second").exists()
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == (
        "make test: 1 failed: test_it.py::test_that_fails;"
        " run just these: .venv/bin/pytest --last-failed --randomly-seed=7"
    )


FAILS_AT_FIRST = """
import pathlib

def test_that_passes_when_it_runs_again():
    before = pathlib.Path("before").exists()
    pathlib.Path("before").touch()
    assert before
"""


def test_in_ci_a_test_that_failed_runs_once_more_and_is_named_if_it_passes(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_it.py").write_text(FAILS_AT_FIRST)
    assert run(PASSES[:1], 7, project, again=True) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    name = "test_it.py::test_that_passes_when_it_runs_again"
    assert last == f"make test: passed, but UNSTEADY, a fault to mend: {name}"


def test_every_test_on_whole_services_is_where_the_second_pass_looks() -> None:
    marked = re.compile(r"^(pytestmark = .*|@)pytest\.mark\.stacks", re.MULTILINE)
    for file in {*ROOT.glob("tests/**/test_*.py")} - {Path(__file__)}:
        if marked.search(file.read_text("utf-8")):
            assert any(file.is_relative_to(ROOT / place) for place in STACKS), file


class Server:
    """A process that says a word and lives until it is killed."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.well = True
        self.start()

    def start(self) -> None:
        with self.log.open("wb") as output:
            command = ["sh", "-c", "echo out of memory; exec sleep 60"]
            self.process = processes.start(command, env={}, output=output)
        until(lambda: self.log.read_text() == "out of memory\n")


@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_is_gone_says_why_once_and_begins_anew(
    tmp_path: Path, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What this test process itself shares is not looked at here.
    monkeypatch.setattr(shared, "_ALL", [])
    server = Server(tmp_path / "log")
    watched = Shared("it", lambda: server.process, server.log, server.start, lambda: server.well)
    with shared.shared(watched):
        assert shared.deaths(closely=True) == []
        if hangs:
            server.well = False
            assert shared.deaths() == []
        else:
            server.process.kill()
            server.process.wait()
        (why,) = shared.deaths(closely=True)
        how = "it does not answer" if hangs else "it has ended with exit code -9"
        assert why == f"{how}; its last words, of {server.log}:\nout of memory"
        assert shared.deaths() == []
        dead, server.well = server.process, True
        shared.start_anew()
        assert server.process is not dead
        assert server.process.poll() is None
        assert shared.deaths(closely=True) == []
    processes.stop(server.process)
    assert isinstance(dead, subprocess.Popen)
    assert dead.poll() is not None
