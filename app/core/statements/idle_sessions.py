"""Sessions that nothing came to for SESSION_IDLE_SECONDS end as abandoned.

What comes to a session does not write to it. `active_at` is what was known when it was looked at
last; a session due by it is looked at, and ends or is put off. So a long session costs one look a
period.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app.core import sessions
from app.core.delivery import events
from app.core.sessions import Outcome
from app.database import cursor

PIECE = 500
"""How many sessions one transaction looks at."""

# Records lock their session, so whoever stores one is finished, or waits and finds it completed.
_QUIET = """
SELECT tenant_id, id FROM sessions
 WHERE status = 'open' AND active_at < (SELECT clock_timestamp() - %s)
 ORDER BY active_at LIMIT %s FOR UPDATE SKIP LOCKED
"""
# A statement of its own: it sees what was committed before the locks were there.
_LAST = """
SELECT s.tenant_id, s.id, clock_timestamp(), greatest(
           s.active_at,
           (SELECT created_at FROM records AS r
             WHERE r.tenant_id = s.tenant_id AND r.session_id = s.id ORDER BY r.id DESC LIMIT 1),
           (SELECT created_at FROM findings AS f
             WHERE f.tenant_id = s.tenant_id AND f.session_id = s.id ORDER BY f.id DESC LIMIT 1))
  FROM unnest(%b::uuid[], %b::uuid[]) AS quiet (tenant_id, id)
  JOIN sessions AS s USING (tenant_id, id)
"""
_PUT_OFF = """
UPDATE sessions AS s SET active_at = seen.at
  FROM unnest(%b::uuid[], %b::uuid[], %b::timestamptz[]) AS seen (tenant_id, id, at)
 WHERE s.tenant_id = seen.tenant_id AND s.id = seen.id
"""
_ABANDON = """
UPDATE sessions SET status = 'completed', outcome = %s, summary = %s, completed_at = %s
 WHERE tenant_id = %s AND id = ANY (%b) AND status = 'open'
"""


def complete_idle(session: Session, idle: timedelta) -> bool:
    """Complete up to `PIECE` sessions that nothing came to for `idle`; say whether more are due.

    Emits `session.completed` for each, once: whoever looks at a session holds its lock. `session`
    sees every tenant.
    """
    cur = cursor(session)
    quiet = cur.execute(_QUIET, (idle, PIECE)).fetchall()
    if not quiet:
        return False
    looked_at = cur.execute(_LAST, tuple(map(list, zip(*quiet, strict=True)))).fetchall()
    ended: defaultdict[UUID, list[UUID]] = defaultdict(list)
    put_off: list[tuple[UUID, UUID, datetime]] = []
    for tenant_id, session_id, now, active_at in looked_at:
        if active_at < now - idle:
            ended[tenant_id].append(session_id)
        else:
            put_off.append((tenant_id, session_id, active_at))
    if put_off:
        cur.execute(_PUT_OFF, tuple(map(list, zip(*put_off, strict=True))))
    at, summary = looked_at[0][2], f"Nothing came to it for {idle.total_seconds():g} seconds."
    for tenant_id, session_ids in ended.items():
        cur.execute(_ABANDON, (Outcome.ABANDONED, summary, at, tenant_id, session_ids))
        found = [
            events.NewEvent("session.completed", sessions.represent(row), at, row.id)
            for row in sessions.of(session, tenant_id, session_ids)
        ]
        events.emit(session, tenant_id, found)
    return len(quiet) == PIECE
