"""A file's lock as the sign that a folder is in use.

The kernel releases it when the last descriptor closes, however its holders end.
"""

import fcntl
import os
import time
from pathlib import Path

_POLL_SECONDS = 0.02


def take(path: Path, patience: float) -> int | None:
    """Lock the file, made if need be, and return its descriptor, for the holder to close.

    None when it stays locked by another for `patience` seconds. The holder's process id is in it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + patience
    while not _locked(descriptor):
        if time.monotonic() > deadline:
            os.close(descriptor)
            return None
        time.sleep(_POLL_SECONDS)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
