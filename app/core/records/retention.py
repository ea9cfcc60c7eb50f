"""Retention: a bundle is due when its record is older than its tenant's days.

This is computed, not stored. `expired_through` is moved forward before the days are lengthened, so
what was due stays expired.
"""

from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.database import Tx, cursor

# Records created at or before this moment are due; null: none is.
DUE_BEFORE = """
greatest(expired_through, clock_timestamp() - make_interval(days => bundle_retention_days::int))
"""

_DUE_BEFORE = f"SELECT {DUE_BEFORE} FROM tenants WHERE id = %s"
MOST_COUNTED = 1000
"""The count of bundles that another retention would delete stops here."""

# Expired bundles lie before `expired_through`, and are not read.
_OLDER = """
SELECT count(*) FROM (
    SELECT FROM records AS r
      JOIN bundles AS b ON b.tenant_id = r.tenant_id AND b.record_id = r.id
     WHERE r.tenant_id = %(tenant)s AND r.created_at <= clock_timestamp() - %(age)s
       AND r.created_at > coalesce((SELECT expired_through FROM tenants WHERE id = %(tenant)s),
                                   '-infinity')
     ORDER BY r.created_at, r.id LIMIT %(most)s + 1) AS found
"""
# The patrol continues at the first record that may still have a bundle, as a round takes days. The
# smallest id marks a position that the patrol has not reached since an earlier change.
_FIRST_ID = UUID(int=0)
_ADVANCE = f"""
UPDATE tenants
   SET expired_through = {DUE_BEFORE},
       patrolled_at = CASE WHEN patrolled_id = '{_FIRST_ID}' THEN patrolled_at
                           ELSE expired_through END,
       patrolled_id = '{_FIRST_ID}'
 WHERE id = %s
"""


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
