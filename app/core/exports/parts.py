"""The storage port of exports: parts of a stream, in PostgreSQL or in the object store.

A part is written once and read alone, so neither side holds an export. Each is sealed for its
place.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.blobs import reading, rows, store
from app.core.blobs.reading import Vanished
from app.core.blobs.store import Item, Stowed
from app.database import Database, carried, cursor
from app.settings import Settings

KIND = "export_parts"
PART_BYTES = 1024 * 1024

_ADD = """
INSERT INTO export_parts (tenant_id, export_id, starts, size, bytes, blob)
VALUES (%s, %s, %s, %s, %b, %s)
"""
_HOLDING = """
SELECT size, export_id, starts, bytes, blob FROM export_parts
 WHERE tenant_id = %s AND export_id = %s AND starts <= %s ORDER BY starts DESC LIMIT 1
"""
_DELETE = """
DELETE FROM export_parts WHERE tenant_id = %s AND export_id = %s AND starts = ANY (ARRAY(
    SELECT starts FROM export_parts WHERE tenant_id = %s AND export_id = %s LIMIT %s))
"""


class Part(NamedTuple):
    """A part to be stored: where it begins in the stream, and its bytes."""

    starts: int
    content: bytes


def identity(tenant_id: UUID, export_id: UUID, starts: int) -> str:
    """Name the place of a part, for which it is sealed."""
    return f"{KIND}/{tenant_id}/{export_id}/{starts}"


def stow(settings: Settings, place: tuple[UUID, UUID], parts: Sequence[Part]) -> list[Stowed]:
    """Seal parts, and store them where `BLOB_URL` says; outside a transaction."""
    items = [
        Item(KIND, *place, starts, settings.master_keys.seal(content, identity(*place, starts)))
        for starts, content in parts
    ]
    return store.stow(store.of(settings.blob_url), items)


def add(
    session: Session, place: tuple[UUID, UUID], parts: Sequence[Part], stowed: Sequence[Stowed]
) -> None:
    """Add the rows of stored parts. Raises `Vanished` for one that was stored long ago."""
    for part, kept in zip(parts, stowed, strict=True):
        rows.require_fresh(session, kept)
        cursor(session).execute(_ADD, (*place, part.starts, len(part.content), *kept))
        carried(session, len(part.content))


def stream(
    database: Database, settings: Settings, place: tuple[UUID, UUID], start: int, stop: int
) -> Iterator[bytes]:
    """Yield the bytes from `start` up to `stop`, each part read in a transaction of its own.

    `place` is tenant and export. Raises `Vanished`, `CannotOpen` and `Unavailable`.
    """

    def read(at: int) -> tuple[int, bytes]:
        with database.transaction(place[0]) as session:
            found = cursor(session).execute(_HOLDING, (*place, at), binary=True).fetchone()
            if found is None or at >= found[2] + found[0]:
                raise Vanished
            row = reading.Row(*found[1:])
            named = identity(*place, row.number)
            return row.number, reading.opened(settings.master_keys, KIND, place[0], row, named)

    return reading.stream(store.of(settings.blob_url), read, start, stop)


def delete_some(session: Session, tenant_id: UUID, export_id: UUID, most: int) -> bool:
    """Delete the rows of some parts; say whether that was all."""
    place = (tenant_id, export_id)
    return cursor(session).execute(_DELETE, (*place, *place, most)).rowcount < most
