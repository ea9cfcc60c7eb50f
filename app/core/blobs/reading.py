"""Reading bytes wherever they lie, with no network inside a transaction.

A transaction that lacks an object is undone: `fetching` fetches the object, and does the same work
again. Who reads need not know where bytes lie, and a slow store holds no connection and no lock.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple, TypeVar
from uuid import UUID

from app.core.blobs.store import Blob, BlobStore
from app.errors import Unavailable
from app.lib.crypto.sealing import CannotOpen, MasterKeys

_Result = TypeVar("_Result")

# A search reads so many stretches of records that are not indexed yet, and each is one more call.
_MOST_CALLS = 100


class Lacking(Exception):
    """Objects that are to be fetched before the same is done again."""

    def __init__(self, blobs: Sequence[Blob]) -> None:
        super().__init__(f"{len(blobs)} objects are to be fetched first")
        self.blobs = blobs


class Vanished(Exception):
    """Bytes are not there any more: their row has gone, or an object is too old to be named."""


class _Objects(NamedTuple):
    """The store, and what of it was `fetched`; None where each object is fetched on the spot."""

    store: BlobStore
    fetched: dict[Blob, bytes | None] | None


_objects: ContextVar[_Objects | None] = ContextVar("objects", default=None)


class Row(NamedTuple):
    """Where the bytes of a row lie: in it, or in an object."""

    owner_id: UUID
    number: int
    bytes: bytes | None
    blob: UUID | None


def sealed(kind: str, tenant_id: UUID, rows: Sequence[Row]) -> list[bytes | None]:
    """Return the sealed bytes of rows; None where an object is lost.

    Raises `Lacking`, and `Unavailable`.
    """
    named = [
        Blob(row.blob, kind, tenant_id, row.owner_id, row.number)
        if row.bytes is None and row.blob is not None
        else None
        for row in rows
    ]
    wanted = [each for each in named if each is not None]
    if not wanted:
        return [row.bytes for row in rows]
    objects = _objects.get()
    if objects is None:
        raise Unavailable("Bytes lie in an object store, and BLOB_URL names none here.")
    found = objects.store.get(wanted) if objects.fetched is None else objects.fetched
    if lacking := [each for each in wanted if each not in found]:
        raise Lacking(lacking)
    return [
        row.bytes if blob is None else found[blob] for row, blob in zip(rows, named, strict=True)
    ]


def opened(master_keys: MasterKeys, kind: str, tenant_id: UUID, row: Row, identity: str) -> bytes:
    """Return the bytes of a row. Raises as `sealed`, and `CannotOpen`."""
    (found,) = sealed(kind, tenant_id, [row])
    if found is None:
        raise CannotOpen("Its object is not in the object store any more.")
    return master_keys.open(found, identity)


def fetching(store: BlobStore | None, work: Callable[[], _Result]) -> _Result:
    """Do some work with transactions of its own, again and again until what it reads is here.

    It must do nothing that lasts before it reads. Raises `Unavailable` where the store is away.
    """
    if store is None:
        return work()
    fetched: dict[Blob, bytes | None] = {}
    with _reading(_Objects(store, fetched)):
        for _ in range(_MOST_CALLS):
            try:
                return work()
            except Lacking as error:
                fetched |= store.get(error.blobs)
    raise Unavailable("What is read here is being moved; try again in a moment.")


def stream(
    store: BlobStore | None, read: Callable[[int], tuple[int, bytes]], start: int, stop: int
) -> Iterator[bytes]:
    """Yield the bytes of a stream from `start` up to `stop`, which lies in parts, part by part.

    `read(at)` returns where the part begins that has this byte, and its bytes; it is called as
    `fetching` calls. So neither side holds the stream, and a slow reader holds no connection.
    """
    while start < stop:
        begin, part = fetching(store, partial(read, start))
        yield part[start - begin : stop - begin]
        start = begin + len(part)


def on_the_spot() -> AbstractContextManager[None]:
    """Fetch on the spot in this block, from the store of whatever it stands in."""
    objects = _objects.get()
    return at_once(objects and objects.store)


def at_once(store: BlobStore | None) -> AbstractContextManager[None]:
    """Fetch on the spot what is read in this block: where nothing else waits meanwhile."""
    return _reading(None if store is None else _Objects(store, None))


@contextmanager
def _reading(objects: _Objects | None) -> Iterator[None]:
    kept = _objects.set(objects)
    try:
        yield
    finally:
        _objects.reset(kept)
