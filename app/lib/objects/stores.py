"""Stores of objects: a bucket of S3's kind, or a folder of this host.

Names have two slashes. Credentials, region and endpoint of a bucket are obstore's own settings
(`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL` and so on).
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

# Of one request; S3 takes a thousand.
AT_ONCE = 1_000
_WRITTEN_WITHIN_SECONDS = 3600


class Away(Exception):
    """The store does not answer as it should; what was asked may be done or not."""


class ObjectStore(Protocol):
    """Keeps bytes by name; each verb raises `Away` where the store does not answer."""

    def put(self, name: str, content: bytes) -> None:
        """Store an object, durably, in place of one of this name."""

    def get(self, name: str) -> bytes | None:
        """Return an object, or None without one."""

    def has(self, name: str) -> bool:
        """Say whether there is an object of this name."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete up to `AT_ONCE` objects; what is not there is deleted already."""

    def names(self, after: str) -> Iterator[str]:
        """Yield the names behind this one, in their order."""


def opened(url: str, seconds: float) -> ObjectStore:
    """Return the store of `s3://bucket/prefix` or `file:///folder`; connects to nothing yet.

    A request to a bucket takes `seconds` at most.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3":
        # Its library takes memory, and most services do without.
        from app.lib.objects.bucket import Bucket  # noqa: PLC0415

        return Bucket(url, timedelta(seconds=seconds))
    return Folder(Path(unquote(parts.path)))


class Folder:
    """Objects as files of a folder: written beside, synced, and renamed into their place."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, name: str, content: bytes) -> None:
        """Store an object, in place of one of this name."""
        file = self._path / name
        scratch = file.with_name(f".{uuid4().hex}")
        try:
            self._write(scratch, content)
            scratch.replace(file)
            _sync(file.parent)
        except OSError as error:
            with suppress(OSError):
                scratch.unlink()
            raise _away(error) from error

    def _write(self, file: Path, content: bytes) -> None:
        while True:
            made = [each for each in (file.parent.parent, file.parent) if not each.exists()]
            file.parent.mkdir(parents=True, exist_ok=True)
            for each in made:
                _sync(each.parent)
            # What is erased meanwhile may have been the last of its folder, and take that along.
            with suppress(FileNotFoundError), file.open("xb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
                return

    def get(self, name: str) -> bytes | None:
        """Return an object, or None without one."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            # A folder that is not mounted has lost nothing.
            if not self._path.is_dir():
                raise Away(f"There is no folder {self._path}.") from None
            return None
        except OSError as error:
            raise _away(error) from error

    def has(self, name: str) -> bool:
        """Say whether there is an object of this name."""
        if not self._path.is_dir():
            raise Away(f"There is no folder {self._path}.")
        return (self._path / name).exists()

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, and folders that are empty then."""
        try:
            for name in names:
                (self._path / name).unlink(missing_ok=True)
            for folder in {(self._path / name).parent for name in names}:
                for each in (folder, folder.parent):
                    with suppress(OSError):
                        each.rmdir()
        except OSError as error:
            raise _away(error) from error

    def names(self, after: str) -> Iterator[str]:
        """Yield the names behind this one, in their order; clear what killed writers left there."""
        first, _, rest = after.partition("/")
        for outer in _entries(self._path, first):
            begin = rest.partition("/")[0] if outer == first else ""
            for inner in _entries(self._path / outer, begin):
                _clear(self._path / outer / inner)
                for each in _entries(self._path / outer / inner, ""):
                    name = f"{outer}/{inner}/{each}"
                    if name > after:
                        yield name


def _entries(folder: Path, begin: str) -> list[str]:
    try:
        return sorted(each for each in os.listdir(folder) if each >= begin and each[0] != ".")  # noqa: PTH208  # names alone
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _away(error) from error


def _clear(folder: Path) -> None:
    """Delete what writers left in a folder that were killed before they named it."""
    try:
        for each in folder.glob(".*"):
            if time.time() - each.stat().st_mtime > _WRITTEN_WITHIN_SECONDS:
                each.unlink()
    except FileNotFoundError:
        # Another sweep was quicker, or its writer is alive; the next one looks again.
        return
    except OSError as error:
        raise _away(error) from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _away(error: OSError) -> Away:
    return Away(f"The folder does not take or give objects: {error.strerror}.")
