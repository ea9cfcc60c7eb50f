"""Retention: a bundle is due when its record is older than its tenant's days.

This is computed, not stored. `expired_through` is moved forward before the days are lengthened, so
what was due stays expired.
"""

from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.database import Tx, cursor

# Everything created at this moment or before it is due; null: nothing is.
DUE_BEFORE = """
greatest(expired_through, clock_timestamp() - make_interval(days => bundle_retention_days::int))
"""

_DUE_BEFORE = f"SELECT {DUE_BEFORE} FROM tenants WHERE id = %s"
MOST_COUNTED = 1000
"""Of bundles that another retention would delete, so many are counted."""

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
# The patrol goes on from the first that may still have a bundle: it takes days to come round. The
# first id there is says that it has not been there since an earlier change.
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
    """Return the moment up to which, and with which, the tenant's bundles are due; None: none."""
    return cursor(tx, scalar_row).execute(_DUE_BEFORE, (tenant_id,)).fetchone()


def count_older(tx: Tx, tenant_id: UUID, age: timedelta) -> int:
    """Return how many bundles are of this age or older; of more than `MOST_COUNTED`, one more."""
    wanted = {"tenant": tenant_id, "age": age, "most": MOST_COUNTED}
    return cursor(tx, scalar_row).execute(_OLDER, wanted).fetchone() or 0


def settle(session: Session, tenant_id: UUID) -> None:
    """Fix which bundles are due by now, before the tenant's days change: none of them comes back.

    Call it with the tenant's row locked.
    """
    cursor(session).execute(_ADVANCE, (tenant_id,))
