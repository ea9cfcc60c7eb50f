"""Records in the order in which their transactions began to write: a reader misses none.

Ids are time, and a slow transaction commits ids that lie behind a reader. So this order is by the
number of the transaction that wrote a record, and ends before the oldest that is still writing.
What comes later has a higher number.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy import literal, select, text, tuple_
from sqlalchemy.orm import Session

from app.core import feeds
from app.core.callers import Caller
from app.database import cursor
from app.errors import FieldError, Invalid
from app.models import Record

# Of a database that was restored elsewhere: numbers of transactions begin anew there, and what was
# written before comes first.
_RESTORED = """
SELECT t.id FROM tenants AS t
 WHERE EXISTS (SELECT FROM records AS r WHERE r.tenant_id = t.id AND r.written_by >= (
               SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint))
"""
_RENUMBER = """
UPDATE records SET written_by = 0 WHERE tenant_id = %s AND written_by >= (
       SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
"""


def rows(
    session: Session,
    caller: Caller,
    filters: Mapping[str, object],
    after: UUID | None,
    limit: int,
) -> Sequence[Record]:
    """Return up to `limit` records that the caller may see and that follow the record `after`.

    `filters` are those of `feeds.newest`. A record comes once every transaction that began to write
    before its own has ended. Raises `Invalid` when there is no such record to follow.
    """
    conditions = feeds.conditions(Record, caller, filters)
    if after is not None:
        known = select(Record.written_by).where(*feeds.visible(Record, caller), Record.id == after)
        written_by = session.scalar(known)
        if written_by is None:
            raise Invalid(FieldError("/after", "Query parameter: There is no record of this id."))
        place = tuple_(Record.written_by, Record.id)
        conditions.append(place > tuple_(literal(written_by), literal(after)))
    horizon = select(text("pg_snapshot_xmin(pg_current_snapshot())::text::bigint"))
    found = select(Record).where(*conditions, Record.written_by < horizon.scalar_subquery())
    return session.scalars(found.order_by(Record.written_by, Record.id).limit(limit)).all()


def renumber_restored(session: Session) -> int:
    """Put records of another database before all that this one writes; return how many."""
    tenants = cursor(session, scalar_row).execute(_RESTORED).fetchall()
    cur = cursor(session)
    return sum(cur.execute(_RENUMBER, (tenant_id,)).rowcount for tenant_id in tenants)
