"""Access without an API key: share links and public records, counted and audited.

The tenant is not known yet, so a database function lifts row-level security for one lookup. An
access is counted, and the day's first by an address audited, before the record is read. One
conditional UPDATE checks and counts: a revoked link opens nothing.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Actor
from app.database import Database, Tx, cursor
from app.lib import forwarded
from app.lib.crypto import share_tokens

_FIND_LINK = "SELECT tenant_id, id, record_id FROM find_share_link(%s)"
_FIND_PUBLIC = "SELECT tenant_id FROM find_public_record(%s)"
_OPEN = """
UPDATE share_links SET opened = opened + 1, last_opened_at = clock_timestamp()
 WHERE tenant_id = %s AND id = %s AND revoked_at IS NULL AND expires_at > clock_timestamp()
RETURNING expires_at
"""
# Of two concurrent openings by one address, the second waits for the first one's row.
_FIRST_TODAY = """
INSERT INTO share_link_openings (tenant_id, share_link_id, day, address_hash)
VALUES (%s, %s, (clock_timestamp() AT TIME ZONE 'UTC')::date, %s)
ON CONFLICT DO NOTHING
"""
_FORGET = """
DELETE FROM share_link_openings WHERE day < (clock_timestamp() AT TIME ZONE 'UTC')::date
"""


@dataclass(frozen=True)
class Link:
    """An active share link, with its token."""

    tenant_id: UUID
    id: UUID
    record_id: UUID
    token: str


def find_link(database: Database, token: str) -> Link | None:
    """Return the active link of this token; None for any other text.

    A malformed token costs no query.
    """
    if not share_tokens.well_formed(token):
        return None
    row = database.ask(_FIND_LINK, (share_tokens.digest(token),))
    if row is None:
        return None
    tenant_id, link_id, record_id = row
    return Link(tenant_id, link_id, record_id, token)


def public_tenant(database: Database, record_id: UUID | None) -> UUID | None:
    """Return the tenant of a public record; None when the record is not public."""
    row = None if record_id is None else database.ask(_FIND_PUBLIC, (record_id,))
    return None if row is None else row[0]


def open_link(session: Session, link: Link, address: str, request_id: str) -> datetime | None:
    """Count an opening by an address; return when the link expires, None if it has ended.

    The day's first opening is known by the address, or its /64 of IPv6.
    """
    cur = cursor(session)
    opened = cur.execute(_OPEN, (link.tenant_id, link.id)).fetchone()
    if opened is None:
        return None
    known_by = share_tokens.address_hash(link.token, forwarded.network(address))
    first = cur.execute(_FIRST_TODAY, (link.tenant_id, link.id, known_by)).rowcount == 1
    if first:
        named = ids.text("shr", link.id)
        chain.append(
            session,
            link.tenant_id,
            Actor("link", named),
            "share_link.open",
            target=("share_link", named),
            details={"record_id": ids.text("rec", link.record_id)},
            request_id=request_id,
            origin=address,
        )
    ends_at: datetime = opened[0]
    return ends_at


def forget_old(tx: Tx) -> int:
    """Delete the address hashes of past days, of all tenants; return how many."""
    return cursor(tx).execute(_FORGET).rowcount
