"""The storage port of exports: parts of a stream, in PostgreSQL or in an object store.

A part is written once and read alone, so neither side holds an export. `EXPORTS_URL` says where new
parts go; each row says where its part lies. Nothing in them is secret beside the database, so they
are not sealed.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.database import Database, Tx, carried, cursor

PART_BYTES = 1024 * 1024
DATABASE, OBJECT = "database", "object"

_ADD = """
INSERT INTO export_parts (tenant_id, export_id, number, begin, size, location, bytes)
VALUES (%s, %s, %s, %s, %s, %s, %b)
"""
_HOLDING = """
SELECT number, begin, size, location, bytes FROM export_parts
 WHERE tenant_id = %s AND export_id = %s AND begin <= %s ORDER BY begin DESC LIMIT 1
"""
_OBJECTS = """
SELECT FROM export_parts WHERE tenant_id = %s AND export_id = %s AND location = 'object' LIMIT 1
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


class ObjectStore(Protocol):
    """Keeps an object for each part; each verb raises `Unavailable` where it does not answer."""

    def put(self, name: str, content: bytes) -> None:
        """Store an object, in place of one of this name."""

    def get(self, name: str) -> bytes | None:
        """Return an object, or None without one."""

    def clear(self, prefix: str) -> None:
        """Delete every object below a prefix."""


@lru_cache(maxsize=4)
def opened(url: str | None) -> ObjectStore | None:
    """Return the store that `EXPORTS_URL` names; None: parts lie in the database."""
    if url is None:
        return None
    # Its library takes memory, and most services do without.
    from app.core.exports.objects import Bucket  # noqa: PLC0415

    return Bucket(url)


def folder_of(tenant_id: UUID, export_id: UUID) -> str:
    """Return the prefix of an export's objects."""
    return f"{ids.text('ten', tenant_id)}/{ids.text('exp', export_id)}"


def name_of(tenant_id: UUID, export_id: UUID, number: int) -> str:
    """Return the name of a part's object."""
    return f"{folder_of(tenant_id, export_id)}/{number:08d}"


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


def add(
    session: Session, tenant_id: UUID, export_id: UUID, parts: Iterable[Part], location: str
) -> None:
    """Store parts, or note that their objects are stored."""
    cur = cursor(session)
    for part in parts:
        kept = part.content if location == DATABASE else None
        values = (tenant_id, export_id, part.number, part.begin, len(part.content), location, kept)
        cur.execute(_ADD, values)
        carried(session, len(part.content))


def stream(
    database: Database,
    store: ObjectStore | None,
    place: tuple[UUID, UUID],
    start: int,
    stop: int,
) -> Iterator[bytes]:
    """Yield the bytes from `start` up to `stop`, each part read in a transaction of its own.

    `place` is tenant and export. Raises `Vanished`.
    """
    tenant_id, export_id = place
    while start < stop:
        with database.transaction(tenant_id) as session:
            found = _holding(session, tenant_id, export_id, start)
        if found is None:
            raise Vanished
        number, begin, size, kept = found
        if kept is None:
            if store is None:
                raise Vanished
            kept = store.get(name_of(tenant_id, export_id, number))
        if kept is None or len(kept) != size or not begin <= start < begin + size:
            raise Vanished
        yield kept[start - begin : stop - begin]
        start = begin + size


def _holding(
    tx: Tx, tenant_id: UUID, export_id: UUID, place: int
) -> tuple[int, int, int, bytes | None] | None:
    wanted = (tenant_id, export_id, place)
    row = cursor(tx).execute(_HOLDING, wanted, binary=True).fetchone()
    if row is None:
        return None
    number, begin, size, location, kept = row
    return number, begin, size, (None if location == OBJECT else bytes(kept))


def has_objects(tx: Tx, tenant_id: UUID, export_id: UUID) -> bool:
    """Say whether parts of an export lie in an object store."""
    return bool(cursor(tx).execute(_OBJECTS, (tenant_id, export_id)).fetchall())


def delete_some(session: Session, tenant_id: UUID, export_id: UUID, most: int) -> bool:
    """Delete the rows of some parts, whose objects went before; say whether that was all."""
    place = (tenant_id, export_id)
    return cursor(session).execute(_DELETE, (*place, *place, most)).rowcount < most
