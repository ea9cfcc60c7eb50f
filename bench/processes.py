"""Processes of a bench: started here, ended here, and what they cost meanwhile."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from dev import processes

ROOT = Path(__file__).resolve().parents[1]

_POLL_SECONDS = 0.02
_STOP_SECONDS = 30.0


class BenchError(RuntimeError):
    """A measurement could not be made; the text says why."""


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until `condition()` is true; raises `BenchError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"not within {seconds:g} s: {what}")
        time.sleep(_POLL_SECONDS)


def listens(port: int) -> bool:
    """Say whether a server accepts connections on a port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


class Process:
    """A command that does not outlive the bench; its output goes to `log`."""

    def __init__(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = processes.start(argv, env=env, cwd=ROOT, output=output)

    @property
    def pid(self) -> int:
        """Its process number; all of it descends from that."""
        return self._process.pid

    def require_alive(self) -> None:
        """Raise `BenchError` with its last words if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise BenchError(f"{self.name} ended with code {code}: {self._last_words()}")

    def finish(self, seconds: float) -> None:
        """Wait for its end; raises `BenchError` if it takes too long or ends badly."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise BenchError(f"{self.name} takes longer than {seconds:g} s") from None
        if code != 0:
            raise BenchError(f"{self.name} ended with code {code}: {self._last_words()}")

    def stop(self) -> None:
        """Ask it to end, and wait until all of it has."""
        processes.stop(self._process, grace=_STOP_SECONDS)

    def _last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return " | ".join(line.strip() for line in lines[-3:]) or "it wrote nothing"


def cpu_seconds(pids: Collection[int]) -> float:
    """Return what processes and their descendants have used, in seconds of one core.

    One that has ended counts with what its parent waited for, so the sum never falls.
    """
    return sum(_cpu_seconds(pid) for pid in _family(pids))


def resident_bytes(pids: Collection[int]) -> int:
    """Return the memory that processes and their living descendants hold (bytes).

    A shared page counts by share (PSS, proc(5)).
    """
    return sum(map(_resident_bytes, _family(pids)))


def _resident_bytes(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
        found = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    except OSError:
        return 0
    return 0 if found is None else int(found[1]) * 1024


def _family(pids: Collection[int]) -> set[int]:
    parents = _parents()
    family = set(pids)
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return family


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            found[int(entry.name)] = int(fields[1])
    return found


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    if not fields:
        return 0.0
    # utime, stime, and cutime, cstime: those of children that were waited for (proc(5)).
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none once it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
