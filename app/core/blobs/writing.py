"""Writing bytes into the object store before the rows that name them."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app.core.blobs.places import Blob, new_id
from app.core.blobs.store import BlobStore

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
