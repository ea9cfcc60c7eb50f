"""A bucket of S3, or of any store that speaks its protocol, and a folder of this host.

Names have two slashes. Each verb raises `Away` where the store does not answer.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from app.lib.objects.opening import AT_ONCE, Away

_CONNECT = timedelta(seconds=2)
_WRITTEN_WITHIN_SECONDS = 3600


def at(url: str, timeout: timedelta) -> "Objects":
    """Return the store of a URL, as `opening.opened` says."""
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return Folder(Path(unquote(parts.path)))
    bucket = S3Store.from_url(
        url,
        # The endpoint's own scheme decides.
        client_options={"timeout": timeout, "connect_timeout": _CONNECT, "allow_http": True},
        retry_config={"max_retries": 1, "retry_timeout": timeout},
    )
    return Objects(bucket)


class Objects:
    """Keeps bytes by name, below a prefix of a bucket."""

    _store: S3Store | LocalStore

    def __init__(self, store: S3Store) -> None:
        self._store = store

    def put(self, name: str, content: bytes) -> None:
        """Store an object, durably, in place of one of this name."""
        with self._asked():
            obstore.put(self._store, name, content, use_multipart=False)

    def get(self, name: str) -> bytes | None:
        """Return an object, or None without one."""
        with self._asked(), suppress(FileNotFoundError):
            return bytes(obstore.get(self._store, name).bytes())
        return None

    def has(self, name: str) -> bool:
        """Say whether there is an object of this name."""
        with self._asked(), suppress(FileNotFoundError):
            obstore.head(self._store, name)
            return True
        return False

    def delete(self, names: Sequence[str]) -> None:
        """Delete up to `AT_ONCE` objects; what is not there is deleted already."""
        with self._asked(), suppress(FileNotFoundError):
            obstore.delete(self._store, list(names))

    def names(self, after: str) -> Iterator[str]:
        """Yield the names behind this one, in their order."""
        with self._asked():
            for batch in obstore.list(self._store, offset=after or None, chunk_size=AT_ONCE):
                for each in batch:
                    yield each["path"]

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            # The library's text names the request.
            raise Away(f"It does not answer as it should ({type(error).__name__}).") from error


class Folder(Objects):
    """Objects as files of a folder, each synced before it counts as stored."""

    def __init__(self, path: Path) -> None:
        """Take a path that may be made, or mounted, later."""
        self._path = path

    def put(self, name: str, content: bytes) -> None:
        """Store an object, durably, in place of one of this name."""
        file = self._path / name
        with suppress(OSError):
            self._path.mkdir(parents=True, exist_ok=True)
        with self._asked():
            made = [each.parent for each in (file.parent.parent, file.parent) if not each.exists()]
            super().put(name, content)
            for each in (file, file.parent, *made):
                handle = os.open(each, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, and folders that are empty then."""
        for each in names:
            super().delete([each])

    def names(self, after: str) -> Iterator[str]:
        """Yield the names behind this one, in their order; clear what killed writers left there."""
        first, _, rest = after.partition("/")
        for outer in self._entries("", first):
            begin = rest.partition("/")[0] if outer == first else ""
            for inner in self._entries(outer, begin):
                for each in self._entries(f"{outer}/{inner}", ""):
                    name = f"{outer}/{inner}/{each}"
                    if "#" in each:
                        self._clear(self._path / name)
                    elif name > after:
                        yield name

    def _entries(self, folder: str, begin: str) -> list[str]:
        with self._asked(), suppress(FileNotFoundError, NotADirectoryError):
            return sorted(each for each in os.listdir(self._path / folder) if each >= begin)  # noqa: PTH208  # names alone
        return []

    def _clear(self, file: Path) -> None:
        """Delete a file that its writer, long dead, never gave the object's name."""
        with self._asked(), suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > _WRITTEN_WITHIN_SECONDS:
                file.unlink()

    @contextmanager
    def _asked(self) -> Iterator[None]:
        with super()._asked():
            # A folder that is not mounted has lost nothing.
            if not self._path.is_dir():
                raise Away(f"There is no folder {self._path}.")
            self._store = LocalStore(self._path, automatic_cleanup=True)
            yield
