"""What a process of the service does about itself: its imports, its parent and its memory."""

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_STATM = Path("/proc/self/statm")


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage within the `with`; never collect what is there when it ends.

    Imported objects stay until the process ends. Collections find next to nothing among them, and
    take a quarter of a start.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def end_with_parent() -> None:
    """Have the kernel kill this process when the process that forked it dies (prctl(2), Linux).

    A `kill -9` of a server's leader would leave children that hold the port or consume messages,
    with old code beside the new. Nothing happens in a process that `multiprocessing` did not start.
    The signal comes when the forking thread ends: granian and Dramatiq fork in their main thread.
    It is SIGKILL, for the leader's limit on a graceful stop is gone too.
    """
    leader = multiprocessing.parent_process()
    if leader is None or sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl was refused")
    if os.getppid() != leader.pid:
        # It died before the kernel was asked to tell.
        os.kill(os.getpid(), signal.SIGKILL)


def resident_bytes() -> int:
    """Return the resident set of this process in bytes; where /proc lacks it, its peak."""
    try:
        pages = int(_STATM.read_text("ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
