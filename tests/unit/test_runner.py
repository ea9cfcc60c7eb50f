"""The runner, on real processes: what it starts again, how it stops, and that nothing is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev import processes
from tests.support.faults import LONG_ENOUGH, until

ROOT = Path(__file__).resolve().parents[2]

# Runs the Procfile it is given; its processes carry the folder's name.
RUNNER = """
import os, sys
from pathlib import Path
from dev import processes, procfile
from dev.runner import Output, Runner, StopRequest

lines = procfile.read(Path(sys.argv[1]))
grace = float(sys.argv[2])
runner = Runner(Output(sys.stdout), StopRequest())
for name, command in lines.items():
    def spawn(name=name, command=command):
        return processes.start(["/bin/sh", "-c", command], env=os.environ, output=-1)
    runner.watch(name, spawn)
runner.run(lambda: None)
runner.stop(*lines, grace=grace)
"""


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Run:
    """A runner at work in a folder, with what it has written so far."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.process = process
        self.folder = folder

    @property
    def said(self) -> list[str]:
        return (self.folder / "said").read_text().splitlines()

    def pid(self, name: str) -> int:
        """Return the process id that a line wrote into a file of that name."""
        file = self.folder / name
        until(lambda: file.exists() and file.read_text().endswith("\n"))
        return int(file.read_text())

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(LONG_ENOUGH)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Return a function that starts a runner on a Procfile; it is stopped after the test."""
    started: list[Run] = []

    def start_runner(text: str, grace: float = LONG_ENOUGH) -> Run:
        file = tmp_path / "Procfile"
        file.write_text(text)
        with (tmp_path / "said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", RUNNER, str(file), str(grace)],
                stdout=said,
                env={**os.environ, "PYTHONPATH": str(ROOT), "HERE": str(tmp_path)},
                start_new_session=True,
            )
        started.append(Run(process, tmp_path))
        return started[-1]

    yield start_runner
    for run in started:
        run.process.kill()
        run.process.wait()


def test_a_process_that_ends_is_started_again_after_a_doubling_pause(
    start: Callable[..., Run],
) -> None:
    run = start("frail: echo here; exit 3\n")
    until(lambda: sum("starting again" in line for line in run.said) >= 3)
    assert run.said[:6] == [
        "frail     | here",
        "frail     | ended with exit code 3; starting again in 0.2 s",
        "frail     | here",
        "frail     | ended with exit code 3; starting again in 0.4 s",
        "frail     | here",
        "frail     | ended with exit code 3; starting again in 0.8 s",
    ]
    assert run.stop() == 0


def test_sigterm_goes_to_the_leader_alone(start: Callable[..., Run]) -> None:
    # The child says what it hears; the leader waits for it, and is the only one to be told.
    run = start(
        "web: (trap 'echo child was told' TERM; echo $$ > $HERE/up; "
        "while ! [ -e $HERE/end ]; do sleep 0.05; done) & "
        "trap 'echo leader was told; touch $HERE/end' TERM; wait; wait\n"
    )
    run.pid("up")
    assert run.stop() == 0
    assert run.said == ["web       | leader was told"]


def test_a_leader_that_does_not_heed_is_killed_in_the_end(start: Callable[..., Run]) -> None:
    deaf = "trap 'echo no' TERM; echo up; while :; do sleep 0.1; done"
    run = start(f"web: {deaf}\n", grace=0.5)
    until(lambda: bool(run.said))
    assert run.stop() == 0
    # It had been asked, and had time to say so.
    assert run.said == ["web       | up", "web       | no"]
    process = processes.start(["sh", "-c", deaf], env=os.environ, output=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    assert processes.stop(process, grace=0.5) == -signal.SIGKILL
    process.stdout.close()


def test_a_reader_that_goes_away_does_not_end_the_service(tmp_path: Path) -> None:
    file = tmp_path / "Procfile"
    file.write_text("web: while :; do echo noise; echo $$ > $HERE/beat; sleep 0.05; done\n")
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(file), str(LONG_ENOUGH)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HERE": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"web       | noise\n"
    process.stdout.close()
    beat = tmp_path / "beat"
    for _ in range(3):
        beat.unlink(missing_ok=True)
        until(beat.exists)
    process.terminate()
    assert process.wait(LONG_ENOUGH) == 0
