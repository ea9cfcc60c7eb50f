"""The store of the log's head outside PostgreSQL: read, and compare-and-swap.

A restored database cannot roll it back. Its content is the unsigned text of the newest checkpoint.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from app.errors import LogHeadUnavailable

_PATIENCE_SECONDS = 5.0
_POLL_SECONDS = 0.01


class HeadStore(Protocol):
    """Keeps one head; both verbs raise `LogHeadUnavailable`, after which anything may be so."""

    def read(self) -> bytes | None:
        """Return the head, or None when none was ever kept."""

    def swap(self, old: bytes | None, new: bytes) -> bool:
        """Replace `old` by `new`, durably; return whether `new` is the head then.

        None stands for no head. That `new` is there already is success.
        """


def beside(url: str | None) -> HeadStore | None:
    """Return the store of the mark of the history, which lies beside the head."""
    return opened(None if url is None else f"{url}.history")


def opened(url: str | None) -> HeadStore | None:
    """Return the store that a `LOG_HEAD_URL` names; connects to nothing yet."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme == "s3":
        # Its library takes memory, and heads in files do without.
        from app.core.log.s3_head import S3Head  # noqa: PLC0415

        return S3Head(parts.netloc, parts.path.strip("/"))
    return FileHead(Path(unquote(parts.path)))


class FileHead:
    """A head in a file; a lock beside it keeps two processes of one machine apart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_name(f"{path.name}.lock")
        self._scratch = path.with_name(f"{path.name}.new")

    def read(self) -> bytes | None:
        """Return the head, or None without a file."""
        with self._locked():
            return self._content()

    def swap(self, old: bytes | None, new: bytes) -> bool:
        """Replace the file at once; a reader finds the old one or the new one, whole."""
        with self._locked():
            # Written again even if it is there: the swap before may have died before its fsync.
            if self._content() not in (old, new):
                return False
            with self._scratch.open("wb") as file:
                self._give_to_owner(file.fileno())
                file.write(new)
                file.flush()
                os.fsync(file.fileno())
            self._scratch.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return True

    def _content(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def _give_to_owner(self, descriptor: int) -> None:
        """Give a file of root's to the folder's owner: no command locks the service out."""
        if os.geteuid() == 0:
            folder = self._path.parent.stat()
            os.fchown(descriptor, folder.st_uid, folder.st_gid)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._give_to_owner(descriptor)
                _flock(descriptor)
                yield
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LogHeadUnavailable(
                f"The log's head in a file is out of reach: {error.strerror}."
            ) from error


def _flock(descriptor: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return
