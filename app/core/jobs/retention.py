"""Retention of ended jobs: each is deleted with the history of the week in which it ended.

By then a retry is useless: the events of a replay are gone, and jobs of other kinds are enqueued
anew. The service's own jobs stay: one row each, which shows the last run.
"""

from datetime import datetime

from sqlalchemy.orm import Session

from app.database import cursor
from app.models import NO_TENANT

# Rows in one transaction, which takes some tens of milliseconds.
AT_ONCE = 2_000

# A job that is being retried is locked, or no longer finished.
_FORGET = """
DELETE FROM jobs WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM jobs
     WHERE finished_at < %s AND tenant_id <> %s
     ORDER BY finished_at LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def forget_old(session: Session, before: datetime) -> int:
    """Delete jobs that ended before a moment, in a session that sees all tenants; return how many.

    At most `AT_ONCE`; fewer means that none are left.
    """
    return cursor(session).execute(_FORGET, (before, NO_TENANT, AT_ONCE)).rowcount
