"""The storage port of exports: parts of a stream, in PostgreSQL or in the object store.

A part is written once and read alone, so neither side holds an export. Each is sealed for its
place.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.blobs import reading, store
from app.core.blobs.store import Item, Stowed
from app.database import Database, carried, cursor
from app.settings import Settings

KIND = "export_parts"
PART_BYTES = 1024 * 1024

_ADD = f"""
INSERT INTO export_parts (tenant_id, export_id, number, begin, size, bytes, blob)
SELECT %(tenant)s, %(export)s, %(number)s, %(begin)s, %(size)s, %(bytes)b, %(blob)s::uuid
 WHERE %(bytes)b::bytea IS NOT NULL OR uuid_made_at(%(blob)s) > clock_timestamp() - {store.FRESH}
"""
_HOLDING = """
SELECT begin, size, export_id, number, bytes, blob FROM export_parts
 WHERE tenant_id = %s AND export_id = %s AND begin <= %s ORDER BY begin DESC LIMIT 1
"""
_DELETE = """
DELETE FROM export_parts WHERE tenant_id = %s AND export_id = %s AND number = ANY (ARRAY(
    SELECT number FROM export_parts WHERE tenant_id = %s AND export_id = %s LIMIT %s))
"""


class Part(NamedTuple):
    """A part to be stored: its place in the stream, and its bytes."""

    number: int
    begin: int
    content: bytes


class Vanished(Exception):
    """A part is not there any more: the export was deleted, or has expired."""


def cut(lines: Iterable[bytes], number: int, begin: int) -> Iterator[Part]:
    """Cut lines into parts, the first of which has this number and place; lines stay whole."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        if size + len(line) > PART_BYTES and waiting:
            yield Part(number, begin, b"".join(waiting))
            number, begin, waiting, size = number + 1, begin + size, [], 0
        waiting.append(line)
        size += len(line)
    if waiting:
        yield Part(number, begin, b"".join(waiting))


def identity(tenant_id: UUID, export_id: UUID, number: int) -> str:
    """Name the place of a part, for which it is sealed."""
    return f"{KIND}/{tenant_id}/{export_id}/{number}"


def stow(settings: Settings, place: tuple[UUID, UUID], parts: Sequence[Part]) -> list[Stowed]:
    """Seal parts, and store them where `BLOB_URL` says; outside a transaction."""
    master_keys = settings.master_keys
    items = [
        Item(KIND, *place, number, master_keys.seal(content, identity(*place, number)))
        for number, _, content in parts
    ]
    return store.stow(store.of(settings.blob_url), items)


def add(
    session: Session, place: tuple[UUID, UUID], parts: Sequence[Part], stowed: Sequence[Stowed]
) -> None:
    """Add the rows of stored parts. Raises `Vanished` for one that was stored long ago."""
    cur = cursor(session)
    for part, kept in zip(parts, stowed, strict=True):
        values = {
            "tenant": place[0],
            "export": place[1],
            "number": part.number,
            "begin": part.begin,
            "size": len(part.content),
            **kept._asdict(),
        }
        if cur.execute(_ADD, values).rowcount != 1:
            raise Vanished
        carried(session, len(part.content))


def stream(
    database: Database, settings: Settings, place: tuple[UUID, UUID], start: int, stop: int
) -> Iterator[bytes]:
    """Yield the bytes from `start` up to `stop`, each part read in a transaction of its own.

    `place` is tenant and export. Raises `Vanished`, `CannotOpen` and `Unavailable`.
    """
    blobs = store.of(settings.blob_url)

    def read() -> tuple[int, bytes]:
        with database.transaction(place[0]) as session:
            found = cursor(session).execute(_HOLDING, (*place, start), binary=True).fetchone()
            if found is None:
                raise Vanished
            begin, size, *rest = found
            if start >= begin + size:
                raise Vanished
            row = reading.Row(*rest)
            named = identity(*place, row.number)
            return begin, reading.opened(settings.master_keys, KIND, place[0], row, named)

    while start < stop:
        begin, content = reading.fetching(blobs, read)
        yield content[start - begin : stop - begin]
        start = begin + len(content)


def delete_some(session: Session, tenant_id: UUID, export_id: UUID, most: int) -> bool:
    """Delete the rows of some parts; say whether that was all."""
    place = (tenant_id, export_id)
    return cursor(session).execute(_DELETE, (*place, *place, most)).rowcount < most
