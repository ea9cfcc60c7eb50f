"""Stopping a worker as a PaaS does it: real processes, real signals, to one and to all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.queue import Bell
from tests.support.faults import LONG_ENOUGH, OwnValkey, until


@pytest.fixture
def worker(own_valkey: OwnValkey, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the worker as the Procfile does, in a process group of its own."""
    command = (
        "-m dramatiq tests.jobs.sample_worker --processes 2 --threads 4 "
        "--worker-shutdown-timeout 20000 --queues deliver jobs tick"
    )
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            env=os.environ | {"REDIS_URL": own_valkey.url},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        # Each of the two processes gives Dramatiq a sign of life once its threads run.
        until(lambda: own_valkey.client.zcard("dramatiq:__heartbeats__") == 2)
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def to_the_leader(pid: int) -> None:
    """Signal as a process runner does."""
    os.kill(pid, signal.SIGTERM)


def to_the_group(pid: int) -> None:
    """Signal as Heroku and systemd do."""
    os.killpg(pid, signal.SIGTERM)


def to_the_group_again_and_again(pid: int) -> None:
    """Signal as an impatient operator does."""
    for _ in range(5):
        os.killpg(pid, signal.SIGTERM)
        time.sleep(0.05)


@pytest.mark.parametrize(
    "stop",
    [
        to_the_leader,
        # What the next does as well, and more.
        pytest.param(to_the_group, marks=pytest.mark.toolbox),
        to_the_group_again_and_again,
    ],
    ids=lambda stop: stop.__name__,
)
def test_what_runs_is_finished_and_told_and_nothing_new_begun(
    own_valkey: OwnValkey,
    worker: "subprocess.Popen[bytes]",
    stop: Callable[[int], None],
    tmp_path: Path,
) -> None:
    valkey = own_valkey.client
    bell = Bell(own_valkey.url)
    bell.ring_many("run_job", [(f"job {n}",) for n in range(3)])
    until(lambda: valkey.llen("begun") == 3)

    stop(worker.pid)

    assert worker.wait(LONG_ENOUGH) == 0, (tmp_path / "worker.log").read_text()
    assert sorted(valkey.lrange("finished", 0, -1)) == [f"job {n} told".encode() for n in range(3)]
    bell.ring("run_job", ("later",))
    assert valkey.llen("begun") == 3


def test_a_worker_that_was_killed_leaves_its_message_to_the_next(
    own_valkey: OwnValkey, worker: "subprocess.Popen[bytes]"
) -> None:
    valkey = own_valkey.client
    Bell(own_valkey.url).ring("run_job", ("job",))
    until(lambda: valkey.llen("begun") == 1)

    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()

    assert valkey.hlen("dramatiq:jobs.msgs") == 1
    assert valkey.llen("finished") == 0
