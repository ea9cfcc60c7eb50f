"""The object store of a process: many objects at once, and a circuit breaker around it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import structlog

from app.core.blobs.places import Blob
from app.errors import Unavailable
from app.lib.breaker import Breaker
from app.lib.objects.stores import AT_ONCE, Away, ObjectStore, opened

# A caller of POST /v1/records waits no longer before its bytes go into the database.
_SECONDS = 5.0
TRY_AGAIN_SECONDS = 5.0
"""While it fails, one call in so many is let through."""
_THREADS = 16

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

_log = structlog.get_logger(__name__)


class BlobStore:
    """The store that `BLOB_URL` names, for all threads of a process."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._breaker = Breaker(TRY_AGAIN_SECONDS)
        self.pool = ThreadPoolExecutor(_THREADS, "blobs")

    def put(self, blobs: Sequence[tuple[Blob, bytes]]) -> bool:
        """Store objects, durably; False where not all of them could be."""
        if not self._breaker.admits():
            return False
        try:
            self._all(self._put, blobs)
        except Away as error:
            self._failed(error)
            return False
        self._succeeded()
        return True

    def get(self, blobs: Sequence[Blob]) -> dict[Blob, bytes | None]:
        """Return objects, None for each that is not there. Raises `Unavailable`."""
        return dict(zip(blobs, self._tried(self._get, blobs), strict=True))

    def erase(self, blobs: Sequence[Blob]) -> None:
        """Delete objects, and see that none of them is there. Raises `Unavailable`."""
        batches = [blobs[at : at + AT_ONCE] for at in range(0, len(blobs), AT_ONCE)]
        self._tried(lambda batch: self._store.delete([each.name for each in batch]), batches)
        if len(self.missing(blobs)) < len(blobs):
            raise Unavailable("The object store (BLOB_URL) still has what was deleted there.")

    def missing(self, blobs: Sequence[Blob]) -> list[Blob]:
        """Return which of these objects are not there. Raises `Unavailable`."""
        there = self._tried(lambda each: self._store.has(each.name), blobs)
        return [blob for blob, is_there in zip(blobs, there, strict=True) if not is_there]

    def names(self, after: str) -> Iterator[str]:
        """Yield the names of objects behind this one, in their order. Raises `Unavailable`."""
        try:
            yield from self._store.names(after)
        except Away as error:
            raise self._failed(error) from error

    def check(self) -> None:
        """Ask for an object that there is not. Raises `Unavailable`."""
        self._tried(self._store.has, ["000000/000/check"])

    def _put(self, item: tuple[Blob, bytes]) -> None:
        self._store.put(item[0].name, item[1])

    def _get(self, blob: Blob) -> bytes | None:
        return self._store.get(blob.name)

    def _tried(self, call: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
        if not self._breaker.admits():
            raise _unavailable()
        try:
            found = self._all(call, items)
        except Away as error:
            raise self._failed(error) from error
        self._succeeded()
        return found

    def _all(self, call: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
        # One needs no other thread.
        return [call(items[0])] if len(items) == 1 else list(self.pool.map(call, items))

    def _failed(self, error: Away) -> Unavailable:
        if self._breaker.failed():
            _log.error("object_store_away", reason=str(error))
        return _unavailable()

    def _succeeded(self) -> None:
        if self._breaker.succeeded():
            _log.info("object_store_back")


def _unavailable() -> Unavailable:
    return Unavailable("The object store (BLOB_URL) does not answer; try again in a moment.")


@lru_cache(maxsize=4)
def of(url: str | None) -> BlobStore | None:
    """Return this process's store of a `BLOB_URL`; None without one."""
    return None if url is None else BlobStore(opened(url, _SECONDS))
