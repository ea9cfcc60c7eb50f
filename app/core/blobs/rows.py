"""The rows that name objects: which there are, and another name for one whose bytes moved."""

from collections.abc import Iterator, Sequence
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.core.blobs.reading import Vanished
from app.core.blobs.store import FRESH, PLACES, Blob, Stowed
from app.database import Database, Tx, cursor

# For backups: a copy of the objects is made after the dump whose rows name them.
_KEPT_FOR = "interval '1 day'"


def require_fresh(tx: Tx, stowed: Stowed) -> None:
    """Raise `Vanished` where a row may not name an object any more: the sweep may have taken it."""
    if stowed.bytes is None and stowed.blob is not None:
        query = f"SELECT uuid_made_at(%s) > clock_timestamp() - {FRESH}"
        if not cursor(tx, scalar_row).execute(query.encode(), (stowed.blob,)).fetchone():
            raise Vanished


def rename(session: Session, changed: Sequence[tuple[Blob, UUID]]) -> int:
    """Let rows name other objects that hold the same; return how many still named the old one."""
    count = 0
    for old, new in changed:
        place = PLACES[old.kind]
        query = f"""
        UPDATE {place.table} SET blob = %s
         WHERE {place.is_row} AND blob = %s AND bytes IS NULL
           AND uuid_made_at(%s) > clock_timestamp() - {FRESH}
        """
        values = (new, *old.key, old.blob, new)
        if cursor(session).execute(query.encode(), values).rowcount:
            count += 1
            retire(session, old)
        else:
            retire(session, old._replace(blob=new), at_once=True)
    return count


def retire(session: Session, blob: Blob, *, at_once: bool = False) -> None:
    """Have an object erased in a day: its bytes lie elsewhere. Or `at_once`: no row took it."""
    due_at = "clock_timestamp()" + ("" if at_once else f" + {_KEPT_FOR}")
    query = f"""
    INSERT INTO dead_blobs (blob, kind, tenant_id, owner_id, number, due_at)
    VALUES (%s, %s, %s, %s, %s, {due_at}) ON CONFLICT DO NOTHING
    """
    cursor(session).execute(query.encode(), blob)


def named(session: Session, blobs: Sequence[Blob]) -> set[Blob]:
    """Return which of these objects a row needs: it has the bytes of one that was not stored."""
    found: set[Blob] = set()
    for kind in {each.kind for each in blobs}:
        of_kind = [each for each in blobs if each.kind == kind]
        names = PLACES[kind].columns
        keys = zip(*(each.key for each in of_kind), strict=True)
        types = ("uuid", "uuid", "bigint")
        arrays = ", ".join(f"%s::{of}[]" for of in types[: len(names)])
        same = " AND ".join(f"t.{name} = k.{name}" for name in names)
        query = f"""
        SELECT k.n FROM unnest({arrays}, %s::uuid[]) WITH ORDINALITY
               AS k ({", ".join(names)}, blob, n)
          JOIN {kind} AS t ON {same} AND t.blob = k.blob AND t.bytes IS NULL
        """
        values = (*map(list, keys), [each.blob for each in of_kind])
        rows = cursor(session).execute(query.encode(), values).fetchall()
        found |= {of_kind[n - 1] for (n,) in rows}
    return found


def retired(session: Session, blobs: Sequence[Blob]) -> set[Blob]:
    """Return which of these objects are to be erased, now or later."""
    query = "SELECT blob FROM dead_blobs WHERE tenant_id = ANY (%s) AND blob = ANY (%s)"
    values = ([*{each.tenant_id for each in blobs}], [each.blob for each in blobs])
    found = {blob for (blob,) in cursor(session).execute(query, values).fetchall()}
    return {each for each in blobs if each.blob in found}


def count(session: Session, table: str) -> dict[str, int]:
    """Return how many rows of a table have their bytes where."""
    query = f"""
    SELECT count(*) FILTER (WHERE bytes IS NULL AND blob IS NOT NULL),
           count(*) FILTER (WHERE bytes IS NOT NULL AND blob IS NULL),
           count(*) FILTER (WHERE bytes IS NOT NULL AND blob IS NOT NULL) FROM {table}
    """
    ((objects, here, waiting),) = cursor(session).execute(query.encode()).fetchall()
    return {"in the object store": objects, "in the database": here, "waiting": waiting}


def batches(database: Database, table: str) -> Iterator[list[Blob]]:
    """Yield the objects that the rows of a table name, a thousand at a time."""
    place = PLACES[table]
    keys = ", ".join(place.columns)
    after: tuple[UUID | int, ...] = ()
    while True:
        behind = f"AND ({keys}) > ({place.casts})" if after else ""
        query = f"""
        SELECT blob, '{table}', tenant_id, {place.key[0]}, {place.number} FROM {table}
         WHERE blob IS NOT NULL AND bytes IS NULL {behind} ORDER BY {keys} LIMIT 1000
        """
        with database.across_tenants() as session:
            found = [Blob(*row) for row in cursor(session).execute(query.encode(), after)]
        if not found:
            return
        yield found
        after = found[-1].key
