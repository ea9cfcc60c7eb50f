"""Revoking a key, never one's own; and what it ends: descending keys and console sessions."""

from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller
from app.core.keys.console_sessions import IDLE, LONGEST
from app.core.keys.keys import locked
from app.database import cursor, database_now
from app.errors import CannotRevokeOwnKey
from app.models import ApiKey

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


def revoke(
    session: Session, caller: Caller, key_id: UUID | None, *, descendants: bool = False
) -> None:
    """Revoke a key at once and for good; does nothing if it is revoked already.

    With `descendants` also every key that it minted, that those minted, and so on. A key never
    revokes itself, since nobody could undo the mistake: raises `CannotRevokeOwnKey` if the caller's
    key is among them, and `NotFound`.
    """
    row = locked(session, caller, key_id)
    others = _lock_descendants(session, row) if descendants else []
    if caller.key_id in (row.id, *(other.id for other in others)):
        raise CannotRevokeOwnKey(
            "The key in use cannot revoke itself, nor what it descends from with all descendants; "
            "use another admin key."
        )
    for ended in (row, *others):
        if ended.revoked_at is None:
            ended.revoked_at = database_now(session)
            details = {"name": ended.name}
            if ended is not row:
                details["descends_from"] = ids.text("key", row.id)
            target = ("key", ids.text("key", ended.id))
            chain.append_by(session, caller, "key.revoke", target=target, details=details)


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


def _lock_descendants(session: Session, root: ApiKey) -> list[ApiKey]:
    """Lock the keys that a locked key minted, and theirs, a generation at a time.

    A locked key cannot mint, so the next statement finds every key that it minted.
    """
    found: list[ApiKey] = []
    generation = [root.id]
    while generation:
        minted = select(ApiKey).where(
            ApiKey.tenant_id == root.tenant_id, ApiKey.created_by.in_(generation)
        )
        children = session.scalars(minted.order_by(ApiKey.id).with_for_update()).all()
        found += children
        generation = [child.id for child in children]
    return found
