"""Moving bytes into the object store, or back: a durable job of the service, a stretch at a time.

Both places are readable meanwhile: a row says where its bytes lie. They are written at the new
place first, and the row is changed only if they are still what was read. The cursor is a table and
a key in it.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.core.blobs import rows
from app.core.blobs.store import FRESH, PLACES, Blob, BlobStore, Item, Place, stow
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, JobFailed, Step
from app.database import cursor
from app.models import Job

KIND = "move_objects"
OBJECTS, DATABASE, WAITING = "objects", "database", "waiting"
"""Everything to the object store; everything back; to the store what came while it was away."""

# Of one step: its transactions take some ten milliseconds.
MOST_ROWS = 500
MOST_BYTES = 8 * 1024 * 1024
# Between two steps: others read and write the same rows and disks.
_PAUSE = timedelta(milliseconds=50)

_LACKS = {
    OBJECTS: "t.bytes IS NOT NULL",
    WAITING: "t.bytes IS NOT NULL AND t.blob IS NOT NULL",
    DATABASE: "t.bytes IS NULL AND t.blob IS NOT NULL",
}


class _Found(NamedTuple):
    """A row to be moved: its key, and what it has."""

    owner_id: UUID
    number: int
    tenant_id: UUID
    bytes: bytes | None
    blob: UUID | None

    def named(self, kind: str) -> Blob:
        return Blob(self.blob or UUID(int=0), kind, self.tenant_id, self.owner_id, self.number)


def order(session: Session, to: str) -> Job:
    """Enqueue the job that moves everything `to` a place, or what waits; one at a time of each."""
    return job_queue.recur(session, kind=KIND, dedupe_key=to, args={"to": to}, after_failure=True)


def order_waiting(session: Session) -> None:
    """Enqueue the job for what came in while the object store was away, if there is any."""
    for place in PLACES.values():
        query = f"SELECT true FROM {place.table} AS t WHERE {_LACKS[WAITING]} LIMIT 1"
        if cursor(session, scalar_row).execute(query.encode()).fetchone():
            order(session, WAITING)
            return


def lines(session: Session) -> Iterator[str]:
    """Say how far the jobs are."""
    for to in (OBJECTS, DATABASE, WAITING):
        job = job_queue.last_of(session, kind=KIND, dedupe_key=to)
        if job is not None:
            shown = job_rows.progress_of(job)
            told = ", ".join(f"{name} {value}" for name, value in shown.items())
            yield f"moving to {to}: {job.status}" + (f" ({told})" if told else "")


def step(
    store: BlobStore | None, session: Session, _: object, job: Job
) -> Step | Errand[Sequence[Any]]:
    """Move the next rows of a table, or go on to the next table."""
    to = job_rows.args_of(job)["to"]
    progress = job_rows.progress_of(job) or {"moved": 0, "bytes": 0}
    if store is None:
        raise JobFailed("BLOB_URL names no object store, to which or from which to move.")
    tables = list(PLACES)
    table, after = json.loads(job.cursor or json.dumps([tables[0], []]))
    place = PLACES[table]
    found = _next(session, place, to, after)
    if not found:
        following = tables[tables.index(table) + 1 :][:1]
        return Step(json.dumps([*following, []]) if following else None, progress)
    last = found[-1].named(table).key
    cursor_ = json.dumps([table, [str(each) for each in last]])

    def record(at_end: Session, moved: Sequence[Any]) -> Step:
        count, size = _record(at_end, place, found, moved, back=to == DATABASE)
        shown = {"moved": progress["moved"] + count, "bytes": progress["bytes"] + size}
        return Step(cursor_, {**shown, "table": table}, _PAUSE)

    return Errand(lambda: _carried(store, table, found, back=to == DATABASE), record)


def _next(session: Session, place: Place, to: str, after: Sequence[str]) -> list[_Found]:
    keys = ", ".join(place.columns)
    behind = f"AND ({keys}) > ({place.casts})" if after else ""
    size = place.size
    query = f"""
    SELECT t.{place.key[0]}, {place.number}, t.tenant_id, t.bytes, t.blob
      FROM (SELECT t.*, sum({size}) OVER (ORDER BY {keys}) - {size} AS bytes_before
              FROM (SELECT t.* FROM {place.table} AS t
                     WHERE {_LACKS[to]} {behind} ORDER BY {keys} LIMIT {MOST_ROWS}) AS t) AS t
     WHERE t.bytes_before < {MOST_BYTES} ORDER BY {keys}
    """
    found = cursor(session).execute(query.encode(), tuple(after), binary=True).fetchall()
    return [_Found(*row) for row in found]


def _carried(store: BlobStore, table: str, found: Sequence[_Found], *, back: bool) -> Sequence[Any]:
    """Write rows' bytes at their new place: return their new ids there, or their bytes."""
    if back:
        objects = store.get([each.named(table) for each in found])
        return list(objects.values())
    items = [
        Item(table, each.tenant_id, each.owner_id, each.number, each.bytes or b"") for each in found
    ]
    stowed = stow(store, items)
    if stowed and stowed[0].bytes is not None:
        store.check()
    return [None if each.bytes is not None else each.blob for each in stowed]


def _record(
    session: Session,
    place: Place,
    found: Sequence[_Found],
    moved: Sequence[Any],
    *,
    back: bool,
) -> tuple[int, int]:
    """Let the rows have their bytes at the new place; return how many did, and their bytes."""
    count, size = 0, 0
    cur = cursor(session)
    for each, new in zip(found, moved, strict=True):
        blob = each.named(place.table)
        if new is None:
            continue
        if back:
            query = f"UPDATE {place.table} SET bytes = %b, blob = NULL"
            query += f" WHERE {place.is_row} AND bytes IS NULL AND blob = %s"
            values = (new, *blob.key, each.blob)
        else:
            query = f"UPDATE {place.table} SET bytes = NULL, blob = %s"
            query += f" WHERE {place.is_row} AND substr(bytes, 1, 17) = %s"
            query += f" AND uuid_made_at(%s) > clock_timestamp() - {FRESH}"
            values = (new, *blob.key, (each.bytes or b"")[:17], new)
        if cur.execute(query.encode(), values).rowcount:
            count += 1
            size += len(new if back else each.bytes or b"")
            if back:
                rows.retire(session, blob)
        elif not back:
            rows.retire(session, blob._replace(blob=new), at_once=True)
    return count, size
