"""Where spools are: a private folder, its files' names, and the lock on each."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from record_service import state

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class Owner(NamedTuple):
    """Whose entries a file holds: for which service, by which key, of which agent."""

    base_url: str
    key: str
    agent: str
    from_environment: bool

    @property
    def file(self) -> str:
        """The beginning of the names of its files."""
        return state.name(self.base_url, self.key)


def folder() -> Path:
    """Return where spools are: within `RECORD_SERVICE_SPOOL`, else within the state folder.

    It is made where it does not exist, for its owner alone. Raises OSError.
    """
    told = os.environ.get("RECORD_SERVICE_SPOOL", "").strip()
    return private(Path(told) if told else state.folder())


def private(parent: Path) -> Path:
    """Return the folder `spool` within another. Raises OSError where it is another user's."""
    found = parent / "spool"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform != "win32":
        mode = found.lstat()
        if mode.st_uid != os.geteuid():
            raise PermissionError(f"{found} is another user's; set RECORD_SERVICE_SPOOL.")
        if mode.st_mode & 0o077:
            found.chmod(0o700)
    return found


def held_bytes(place: Path) -> int:
    """Return the bytes of all files of a spool."""
    total = 0
    for each in place.iterdir():
        with suppress(FileNotFoundError):  # another process has just closed it
            total += each.stat().st_size
    return total


class Lock:
    """A lock on a file, held by this process until it is released or the process ends."""

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError where another process (or this one) holds it."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.open(path, flags, 0o600)
        try:
            if sys.platform == "win32":
                msvcrt.locking(self._file, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise BlockingIOError(f"{path} is held.") from None
        _HELD.add(self)

    def release(self) -> None:
        """Give it up, though a child that was just forked may have its descriptor still."""
        if self in _HELD:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self.leave()

    def leave(self) -> None:
        """In a forked child: close the descriptor, which leaves the parent its lock."""
        _HELD.discard(self)
        os.close(self._file)


# Of this process; what a child inherits of them would outlive its parent.
_HELD: set[Lock] = set()


def leave_locks() -> None:
    """In a forked child: give up the descriptors of all its parent's locks."""
    for lock in list(_HELD):
        lock.leave()
