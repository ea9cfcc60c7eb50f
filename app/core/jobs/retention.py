"""Old jobs: each goes with the history of the week in which it ended.

By then nobody needs one, however it ended. What a replay would send again is gone, its deliveries
too; of all other kinds whoever needs one begins it anew: the clock, or the next request. So a dead
job can be retried for as long as that can do anything. The service's own jobs stay: each is one
row, which says how it went last.
"""

from datetime import datetime

from sqlalchemy.orm import Session

from app.database import cursor
from app.models import NO_TENANT

# In one transaction: some tens of milliseconds.
AT_ONCE = 2_000

# One that is retried just now is not finished any more, or locked.
_FORGET = """
DELETE FROM jobs WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM jobs
     WHERE finished_at < %s AND tenant_id <> %s
     ORDER BY finished_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def forget_old(session: Session, before: datetime) -> int:
    """Delete jobs that ended before a moment, in a session that sees all tenants; return how many.

    At most `AT_ONCE`: fewer were all there were.
    """
    return cursor(session).execute(_FORGET, (before, NO_TENANT, AT_ONCE)).rowcount
