"""Bytes outside PostgreSQL: where they may lie, the names of objects, and how they are put there.

A row of `PLACES` has `bytes`, or a `blob`, or both while it waits to be carried over. No object
changes, and none is named twice: a blob's id is a version 7 UUID that ends with the master key's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

import structlog

from app import ids
from app.errors import Unavailable
from app.lib.breaker import Breaker
from app.lib.crypto.sealing import key_of
from app.lib.objects.opening import AT_ONCE, Away, opened

if TYPE_CHECKING:
    from app.lib.objects.stores import Objects

_NAME_PARTS = 5


class Place(NamedTuple):
    """A table with such bytes: `key` is its primary key behind the tenant.

    `of_object` is the size of what lies in an object, or about that, in SQL.
    """

    table: str
    key: tuple[str, ...]
    of_object: str = "t.size"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the primary key."""
        return ("tenant_id", *self.key)

    @property
    def number(self) -> str:
        """The column of `Blob.number`, or 0."""
        return (*self.key[1:], "0")[0]

    @property
    def casts(self) -> str:
        """Placeholders for a whole key."""
        return ", ".join(f"%s::{each}" for each in ("uuid", "uuid", "bigint")[: len(self.columns)])

    @property
    def size(self) -> str:
        """The size of the bytes of a row `t`, in SQL; they are not read for it."""
        return f"coalesce(octet_length(t.bytes), {self.of_object})"

    @property
    def is_row(self) -> str:
        """The condition for one row; its values are a `Blob.key`."""
        return f"({', '.join(self.columns)}) = ({self.casts})"


class Whole(bytes):
    """Bytes that are a part of their own (`cut`)."""


def cut(stream: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Cut a stream into parts of this size; shorter ones stand before `Whole` and at the end."""
    waiting = bytearray()
    for chunk in chain(stream, [Whole()]):
        if isinstance(chunk, Whole):
            yield from filter(None, (bytes(waiting), chunk))
            waiting.clear()
            continue
        waiting += chunk
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]


PLACES: Mapping[str, Place] = {
    place.table: place
    for place in (
        Place("bundles", ("record_id",)),
        Place("evidence_pack_parts", ("pack_id", "starts"), "262144"),
        Place("export_parts", ("export_id", "starts")),
        Place("audit_segments", ("id",)),
    )
}
"""By table, which is also the kind of the objects."""


class Blob(NamedTuple):
    """An object: its id, and the key of the row that names it (`number` is 0 in bundles)."""

    blob: UUID
    kind: str
    tenant_id: UUID
    owner_id: UUID
    number: int = 0

    @property
    def name(self) -> str:
        """The object's name, which sorts by time: a folder for each four hours and four seconds."""
        first = self.blob.hex
        rest = f"{self.kind}.{self.tenant_id.hex}.{self.owner_id.hex}.{self.number}"
        return f"{first[:6]}/{first[6:9]}/{first}.{rest}"

    @property
    def key(self) -> tuple[UUID | int, ...]:
        """The primary key of its row, the tenant first."""
        return (self.tenant_id, self.owner_id, self.number)[: len(PLACES[self.kind].columns)]


def named(name: str) -> Blob | None:
    """Return what an object of this name is; None for one that is not ours."""
    parts = name.rpartition("/")[2].split(".")
    if len(parts) != _NAME_PARTS or parts[1] not in PLACES:
        return None
    try:
        found = Blob(UUID(parts[0]), parts[1], UUID(parts[2]), UUID(parts[3]), int(parts[4]))
    except ValueError:
        return None
    return found if found.name == name else None


def new_id(sealed: bytes, at: datetime | None = None) -> UUID:
    """Return a fresh id for sealed bytes that are written at this moment, by default now."""
    key = bytes.fromhex(key_of(sealed) or "00000000")
    return UUID(bytes=ids.new(at).bytes[:12] + key)


def key_id(blob: UUID) -> str:
    """Return the id of the master key that sealed an object."""
    return blob.bytes[12:].hex()


def first_id(at: datetime) -> str:
    """Return the first name that an object of this moment can have."""
    first = ids.earliest_at(at).hex
    return f"{first[:6]}/{first[6:9]}/{first}"


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

    def __init__(self, store: "Objects") -> None:
        self._store = store
        self._breaker = Breaker(TRY_AGAIN_SECONDS)
        self.pool = ThreadPoolExecutor(_THREADS, "blobs")

    def put(self, blobs: Sequence[tuple[Blob, bytes]]) -> bool:
        """Store objects, durably; False where not all of them could be."""
        if not self._breaker.admits():
            return False
        try:
            self._all(lambda each: self._store.put(each[0].name, each[1]), blobs)
        except Away as error:
            self._failed(error)
            return False
        self._succeeded()
        return True

    def get(self, blobs: Sequence[Blob]) -> dict[Blob, bytes | None]:
        """Return objects, None for each that is not there. Raises `Unavailable`."""
        found = self._tried(lambda each: self._store.get(each.name), blobs)
        return dict(zip(blobs, found, strict=True))

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


FRESH = "interval '1 hour'"
"""A row may name no object that is older: the sweep takes what is, and no row has ever named."""


class Stowed(NamedTuple):
    """What a row gets: `bytes` alone without a store, else `blob`, with both if it is away."""

    bytes: bytes | None
    blob: UUID | None = None


class Item(NamedTuple):
    """Sealed bytes to be stored, for the row with this key."""

    kind: str
    tenant_id: UUID
    owner_id: UUID
    number: int
    sealed: bytes
    at: datetime | None = None


def stow(store: BlobStore | None, items: Sequence[Item]) -> list[Stowed]:
    """Store bytes, and return what each one's row is to have.

    Without an answer of the store all of it goes into the database, from where a job carries it
    over: what comes in does not depend on the store.
    """
    if store is None:
        return [Stowed(each.sealed) for each in items]
    blobs = [
        Blob(new_id(each.sealed, each.at), each.kind, each.tenant_id, each.owner_id, each.number)
        for each in items
    ]
    pairs = [(blob, each.sealed) for blob, each in zip(blobs, items, strict=True)]
    there = store.put(pairs)
    return [Stowed(None if there else sealed, blob.blob) for blob, sealed in pairs]


def waiting(store: BlobStore | None, item: Item) -> Stowed:
    """Return what a row has that is written in a transaction: a job carries its bytes over."""
    return Stowed(item.sealed, None if store is None else new_id(item.sealed, item.at))
