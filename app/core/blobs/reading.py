"""Reading bytes wherever they lie, with no network inside a transaction.

Whoever reads in a transaction finds what was fetched before it; what was not raises `Needed`, which
ends the transaction. `fetching` then fetches it and calls again. So readers need not know where
bytes lie, and a slow store holds no connection and no lock.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from app.core.blobs.store import Blob, BlobStore
from app.errors import Unavailable
from app.lib.crypto.sealing import CannotOpen, MasterKeys

_Result = TypeVar("_Result")

# A search reads so many stretches of records that are not indexed yet, and each is one more call.
_MOST_CALLS = 100


class Needed(BaseException):
    """Objects that are to be fetched before the same is done again.

    No `Exception`: nothing on its way may take it for a failure.
    """

    def __init__(self, blobs: Sequence[Blob]) -> None:
        super().__init__(f"{len(blobs)} objects are to be fetched first")
        self.blobs = blobs


class _Source(Protocol):
    def get(self, blobs: Sequence[Blob]) -> dict[Blob, bytes | None]:
        """Return objects; None for each that is not there."""


class _Fetched:
    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.objects: dict[Blob, bytes | None] = {}

    def get(self, blobs: Sequence[Blob]) -> dict[Blob, bytes | None]:
        missing = [each for each in blobs if each not in self.objects]
        if missing:
            raise Needed(missing)
        return {each: self.objects[each] for each in blobs}


_source: ContextVar[_Source | None] = ContextVar("blobs", default=None)


class Row(NamedTuple):
    """Where the bytes of a row lie: in it, or in an object."""

    owner_id: UUID
    number: int
    bytes: bytes | None
    blob: UUID | None


def sealed(kind: str, tenant_id: UUID, rows: Sequence[Row]) -> list[bytes | None]:
    """Return the sealed bytes of rows; None where an object is lost.

    Raises `Needed`, and `Unavailable`.
    """
    if all(row.bytes is not None for row in rows):
        return [row.bytes for row in rows]
    named = [
        Blob(row.blob, kind, tenant_id, row.owner_id, row.number)
        if row.bytes is None and row.blob is not None
        else None
        for row in rows
    ]
    source = _source.get()
    if source is None:
        raise Unavailable("Bytes lie in an object store, and BLOB_URL names none here.")
    found = source.get([each for each in named if each is not None])
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
    fetched = _Fetched(store)
    kept = _source.set(fetched)
    try:
        for _ in range(_MOST_CALLS):
            try:
                return work()
            except Needed as needed:
                fetched.objects.update(store.get(needed.blobs))
    finally:
        _source.reset(kept)
    raise Unavailable("What is read here is being moved; try again in a moment.")


@contextmanager
def on_the_spot() -> Iterator[None]:
    """Fetch on the spot in this block, from the store of whatever it stands in."""
    source = _source.get()
    with at_once(source.store if isinstance(source, _Fetched) else source):
        yield


@contextmanager
def at_once(store: _Source | None) -> Iterator[None]:
    """Fetch on the spot what is read in this block: where nothing else waits meanwhile."""
    kept = _source.set(store)
    try:
        yield
    finally:
        _source.reset(kept)
