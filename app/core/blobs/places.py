"""The columns whose sealed bytes may lie in the object store, and the names of their objects.

A row has `bytes`, or a `blob`, or both while it waits to be carried over. A blob's id is a version
7 UUID of when it was written, whose last four bytes name the master key that sealed it. No name is
used twice, so an object never changes.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from app import ids
from app.lib.crypto.sealing import key_of

_NAME_PARTS = 5


class Place(NamedTuple):
    """A table with such bytes: `key` is its primary key behind the tenant."""

    table: str
    key: tuple[str, ...]


PLACES: Mapping[str, Place] = {
    place.table: place
    for place in (
        Place("bundles", ("record_id",)),
        Place("evidence_pack_parts", ("pack_id", "starts")),
        Place("export_parts", ("export_id", "number")),
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
        return (self.tenant_id, self.owner_id, self.number)[: 1 + len(PLACES[self.kind].key)]


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
