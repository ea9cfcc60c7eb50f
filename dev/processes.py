"""Processes that end with the one that started them.

The kernel kills a process when the thread that started it ends (PR_SET_PDEATHSIG). What it has
forked itself is not reached by that: `kill_rest` kills its session, and the next run kills by
`kill_carrying` what has outlived a killed one.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypedDict

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# Within so long a process that was asked to stop has drained.
GRACE_SECONDS = 25.0
_POLL_SECONDS = 0.02


class Account(TypedDict):
    """The user and group, by number, that a command runs as."""

    user: int
    group: int


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    account: Account | None = None,
    output: int | IO[bytes] | None = None,
    hold: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start `argv` in a session of its own; it is killed when the calling thread ends.

    `output` takes both its standard output and error. It inherits the descriptors in `hold`: a lock
    among them is held until it has gone.
    """
    starter = os.getpid()

    def tie() -> None:
        # Runs after the change of user, which would have cleared the tie.
        tie_to_parent(signal.SIGKILL)
        # The starter may have gone before the kernel was asked to watch it.
        if os.getppid() != starter:
            os._exit(128 + signal.SIGKILL)

    return subprocess.Popen(  # noqa: S603
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        user=account and account["user"],
        group=account and account["group"],
        extra_groups=[] if account else None,
        start_new_session=True,
        pass_fds=hold,
        preexec_fn=tie,  # noqa: PLW1509  # it takes no lock that another thread may hold
    )


def stop(
    process: "subprocess.Popen[bytes]",
    how: signal.Signals = signal.SIGTERM,
    grace: float = GRACE_SECONDS,
) -> int:
    """Stop a started process, by force after `grace` seconds; return its exit code.

    What it leaves behind, or has left when it ended by itself, is killed.
    """
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    kill_rest(process)
    return process.returncode


def kill_rest(process: "subprocess.Popen[bytes]") -> None:
    """Kill what a process that has ended has left behind in its session."""
    # Its number may be another process's by now, whose group is none of ours.
    if not Path(f"/proc/{process.pid}").exists():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def begin_program(name: str, description: str | None) -> None:
    """Read the options of `make up` or the demo: with `--tied` it stops when its parent ends."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--tied", action="store_true", help="stop when the parent ends")
    if parser.parse_args().tied:
        tie_to_parent(signal.SIGTERM)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def tie_to_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl was refused")


def carrying(**mark: str) -> list[int]:
    """Return the living processes that were started with all of these in their environment."""
    wanted = {f"{name}={value}".encode() for name, value in mark.items()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile, or belong to another user.
        with suppress(OSError):
            if wanted <= {*(folder / "environ").read_bytes().split(b"\0")}:
                found.append(int(folder.name))
    return found


def kill_carrying(**mark: str) -> None:
    """Kill those processes, and wait until they have gone."""
    while pids := carrying(**mark):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
