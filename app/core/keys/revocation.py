"""Effects of revoking a key: the keys that descend from it, and console sessions."""

from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.core.callers import Caller
from app.core.keys.console_sessions import IDLE, LONGEST
from app.database import cursor

MOST = 1000
"""The count of descendants stops after this many."""

# Also follows ended keys, as keys that they minted may be valid; stops at the LIMIT of rows.
_DESCENDANTS = """
WITH RECURSIVE minted AS (
    SELECT id, revoked_at, expires_at FROM api_keys
     WHERE tenant_id = %(tenant)s AND created_by = %(key)s
    UNION ALL
    SELECT k.id, k.revoked_at, k.expires_at FROM minted AS m
      JOIN api_keys AS k ON k.tenant_id = %(tenant)s AND k.created_by = m.id
)
SELECT count(*)
  FROM (SELECT FROM minted
         WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
         LIMIT %(most)s + 1) AS good
"""
_ANCESTORS = """
WITH RECURSIVE minters AS (
    SELECT created_by AS id FROM api_keys WHERE tenant_id = %(tenant)s AND id = %(own)s
    UNION
    SELECT k.created_by FROM minters AS m
      JOIN api_keys AS k ON k.tenant_id = %(tenant)s AND k.id = m.id
)
SELECT EXISTS (SELECT FROM minters WHERE id = %(key)s)
"""
_SESSIONS = """
SELECT count(*) FROM console_sessions
 WHERE tenant_id = %s AND api_key_id = %s
   AND created_at > clock_timestamp() - %s AND last_used_at > clock_timestamp() - %s
"""


@dataclass(frozen=True)
class Effects:
    """The numbers of valid keys that descend from a key, and of its console sessions.

    `own` says that the caller's key is among the descendants, so that it cannot revoke them all.
    """

    descendants: int
    own: bool
    sessions: int


def effects(session: Session, caller: Caller, key_id: UUID) -> Effects:
    """Return the effects of revoking a key; counts at most `MOST` + 1 descendants."""
    wanted = {
        "tenant": caller.tenant_id,
        "key": key_id,
        "own": caller.key_id,
        "most": MOST,
    }
    sessions = (caller.tenant_id, key_id, LONGEST, IDLE)
    cur = cursor(session, scalar_row)
    return Effects(
        descendants=cur.execute(_DESCENDANTS, wanted).fetchone() or 0,
        own=bool(cur.execute(_ANCESTORS, wanted).fetchone()),
        sessions=cur.execute(_SESSIONS, sessions).fetchone() or 0,
    )
