"""A subreaper between a command and its starter: no descendant outlives either.

The kernel tells it that the starter died (PR_SET_PDEATHSIG) and hands it the command's orphans
(PR_SET_CHILD_SUBREAPER). SIGTERM stops the command, and kills after `grace`; SIGHUP kills at once.
It exits as the command did, or with 128 + N. Its task comes by standard input.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TypedDict

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_HEEDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class Account(TypedDict):
    """The user and group, by number, that a command runs as."""

    user: int
    group: int


class _Task(TypedDict):
    parent: int
    argv: list[str]
    cwd: str | None
    account: Account | None
    stop: int
    grace: float


def spawn(
    name: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    account: Account | None = None,
    stop: signal.Signals = signal.SIGTERM,
    grace: float = 25.0,
    output: int | IO[bytes] | None = None,
    hold: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start `argv` under a subreaper that `ps` shows with `name`; return its process.

    `stop` is what the command's leader is sent in order to end; after `grace` seconds it is killed.
    `output` takes both its standard output and error. The descriptors in `hold` stay open in the
    subreaper, and not in the command: a lock among them is held until all of the command has gone.
    Call it from the main thread: the kernel counts the end of the calling thread as the asker's.
    """
    task: _Task = {
        "parent": os.getpid(),
        "argv": list(argv),
        "cwd": str(cwd) if cwd else None,
        "account": account,
        "stop": int(stop),
        "grace": grace,
    }
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", __file__, name],
        env=env,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        start_new_session=True,
        pass_fds=hold,
    )
    assert process.stdin is not None  # noqa: S101  # a pipe was asked for
    with process.stdin as pipe:
        pipe.write(json.dumps(task).encode())
    return process


def adopt_orphans() -> None:
    """Have the kernel hand this process the descendants that lose their parent."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def tie_to_parent(fatal: signal.Signals) -> None:
    """Have the kernel send this process `fatal` when the thread that started it ends."""
    _prctl(PR_SET_PDEATHSIG, fatal)


def kill_children(but: Collection[int] = ()) -> None:
    """Kill and collect the children of this process that are not in `but`, and theirs in turn.

    A dead child's own children become this process's, once it adopts orphans.
    """
    while strays := [pid for pid in _children() if pid not in but]:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl was refused")


def _keep(task: _Task) -> int:
    """Run the command to its end, then see to it that nothing of it is left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
    adopt_orphans()
    tie_to_parent(signal.SIGHUP)
    # The asker may have gone before the kernel was asked to watch it.
    if os.getppid() != task["parent"]:
        return 128 + signal.SIGHUP
    leader = _start(task)
    code = _await(leader.pid, task)
    kill_children()
    return code


def _start(task: _Task) -> "subprocess.Popen[bytes]":
    account = task["account"]
    return subprocess.Popen(  # noqa: S603
        task["argv"],
        stdin=subprocess.DEVNULL,
        cwd=task["cwd"],
        user=account and account["user"],
        group=account and account["group"],
        extra_groups=[] if account else None,
        start_new_session=True,
        # Runs after the change of user, which would have cleared the tie. One thread: fork is safe.
        preexec_fn=_before_exec,  # noqa: PLW1509
    )


def _before_exec() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEEDED)
    tie_to_parent(signal.SIGKILL)


def _await(leader: int, task: _Task) -> int:
    """Wait until the leader has ended, or must be killed; return its exit code."""
    deadline = float("inf")
    while True:
        # The call takes no infinity.
        patience = min(max(deadline - time.monotonic(), 0.0), 3600.0)
        told = signal.sigtimedwait(_HEEDED, patience)
        signo = told.si_signo if told else None
        if signo == signal.SIGHUP or time.monotonic() >= deadline:
            return 128 + signal.SIGKILL
        if signo == signal.SIGTERM:
            deadline = min(deadline, time.monotonic() + task["grace"])
            os.kill(leader, task["stop"])
        code = _reap(leader)
        if code is not None:
            return code


def _reap(leader: int) -> int | None:
    """Reap the children that ended; return the leader's exit code if it is among them."""
    pid, status = os.waitpid(-1, os.WNOHANG)
    while pid:
        if pid == leader:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        pid, status = os.waitpid(-1, os.WNOHANG)
    return None


def _children() -> list[int]:
    me = os.getpid()
    names = (entry.name for entry in Path("/proc").iterdir())
    processes = (int(name) for name in names if name.isdecimal())
    return [pid for pid in processes if _parent(pid) == me]


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:  # it ended meanwhile
        return None
    # The name before ")" may hold anything, a ")" included.
    return int(stat.rpartition(")")[2].split()[1])


if __name__ == "__main__":
    sys.exit(_keep(json.load(sys.stdin)))
