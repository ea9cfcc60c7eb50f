"""Retention: a bundle is due when its record is older than its tenant's days, unless it is held.

This is computed, not stored. `expired_through` is moved forward before the days are lengthened, so
what was due stays expired. A legal hold keeps what is still stored when it is made.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.database import Tx, cursor

# Records created at or before this moment are due; null: none is.
DUE_BEFORE = """
greatest(expired_through, clock_timestamp() - make_interval(days => bundle_retention_days::int))
"""


def held(records: str = "r", record_id: str = "id") -> str:
    """Return the SQL condition for records under a legal hold; `records` is their table's alias.

    `record_id` is the column that names the record, in another table that has its other columns.
    """
    # Counted: for EXISTS the planner hopes for an early match, and reads a table of a thousand
    # holds for each record, of which most have none.
    standing = (
        f"SELECT count(*) FROM holds AS h WHERE h.tenant_id = {records}.tenant_id"
        " AND h.released_at IS NULL"
    )
    return (
        f"(({standing} AND h.subject_id IS NOT NULL AND h.subject_id IN"
        f" ({records}.{record_id}, {records}.session_id, {records}.agent_id)) > 0"
        f" OR ({standing} AND h.subject_id IS NULL"
        f" AND h.until > {records}.created_at AND h.since <= {records}.created_at) > 0)"
    )


# Whether a bundle may be read, of records `r` and tenants `t`: it is not due, or held.
READABLE = f"(coalesce(r.created_at > {DUE_BEFORE}, true) OR {held()})"

_DUE_BEFORE = f"SELECT {DUE_BEFORE} FROM tenants WHERE id = %s"
MOST_COUNTED = 1000
"""The count of bundles that another retention would delete stops here."""

# Expired bundles lie before `expired_through`, and are not read.
_OLDER = f"""
SELECT count(*) FROM (
    SELECT FROM records AS r
      JOIN bundles AS b ON b.tenant_id = r.tenant_id AND b.record_id = r.id
     WHERE r.tenant_id = %(tenant)s AND r.created_at <= clock_timestamp() - %(age)s
       AND r.created_at > coalesce((SELECT expired_through FROM tenants WHERE id = %(tenant)s),
                                   '-infinity')
       AND NOT {held()}
     ORDER BY r.created_at, r.id LIMIT %(most)s + 1) AS found
"""
# What was due, and is not deleted yet, lies behind `expired_through` from then on.
_ADVANCE = f"""
UPDATE tenants
   SET expired_through = {DUE_BEFORE},
       looked_through_at = CASE WHEN {DUE_BEFORE} > coalesce(expired_through, '-infinity')
                                THEN to_timestamp(0) ELSE looked_through_at END
 WHERE id = %s
"""


_STATES = f"""
SELECT r.id, {held()}, EXISTS (SELECT FROM bundles AS b WHERE b.tenant_id = r.tenant_id
                                  AND b.record_id = r.id) AND {READABLE}
  FROM records AS r JOIN tenants AS t ON t.id = r.tenant_id
 WHERE r.tenant_id = %s AND r.id = ANY (%b)
"""


class State(NamedTuple):
    """Whether a record is under a legal hold, and whether its bundle may be read."""

    held: bool
    kept: bool


def states(tx: Tx, tenant_id: UUID, record_ids: Sequence[UUID]) -> Mapping[UUID, State]:
    """Return the state of each of a tenant's records."""
    found = cursor(tx).execute(_STATES, (tenant_id, record_ids))
    return {record_id: State(*state) for record_id, *state in found}


def due_before(tx: Tx, tenant_id: UUID) -> datetime | None:
    """Return the moment up to which (inclusive) the tenant's bundles are due; None: none is."""
    return cursor(tx, scalar_row).execute(_DUE_BEFORE, (tenant_id,)).fetchone()


def count_older(tx: Tx, tenant_id: UUID, age: timedelta) -> int:
    """Return how many bundles are of this age or older, at most `MOST_COUNTED` + 1."""
    wanted = {"tenant": tenant_id, "age": age, "most": MOST_COUNTED}
    return cursor(tx, scalar_row).execute(_OLDER, wanted).fetchone() or 0


def settle(session: Session, tenant_id: UUID) -> None:
    """Store up to when bundles are due, before the tenant's days change: none becomes readable.

    Call it with the tenant's row locked.
    """
    cursor(session).execute(_ADVANCE, (tenant_id,))
