"""Real processes as the Procfile has them, and what remains of them."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from dev import processes, procfile
from dev.stack import ROOT


def start(name: str, environ: Mapping[str, str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a line of the Procfile with this environment alone, in a session of its own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = procfile.read(ROOT / "Procfile")[name]
    env = {**environ, "PATH": path}
    return processes.start(["/bin/sh", "-c", line], env=env, cwd=ROOT, output=output)


def children(pid: int) -> list[int]:
    """Return the processes that a process's main thread has forked."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it, elders first."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name before ")" may hold anything, a ")" included.
            stat = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2]
            state, parent, *_ = stat.split()
            if state != "Z":
                children[int(parent)].append(int(folder.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found


def runs(pid: int) -> bool:
    """Say whether a process runs; one that has ended may still wait to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
