"""Share links, and access without an API key: by a link, or to a public record.

A link reads one record and its exports until it ends. Its token is shown once and stored as
SHA-256. Whose it is is not known yet: a database function lifts row-level security for a lookup.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Actor, Caller
from app.core.records import records
from app.database import Database, Tx, cursor, database_now
from app.errors import FieldError, Invalid, NotFound, TooManyShareLinks
from app.lib import forwarded
from app.lib.crypto import share_tokens
from app.models import Record, ShareLink
from app.schemas import fields, party_fields
from app.schemas.schema import AnswerSchema

MAX_ACTIVE = 100
"""Links of one record that may be active at a time."""
DEFAULT_LIFETIME = 24 * 3600
MAX_LIFETIME = 30 * DEFAULT_LIFETIME
"""The longest lifetime of a link, in seconds; `mint` refuses a longer one."""

_IS_ACTIVE = and_(ShareLink.revoked_at.is_(None), ShareLink.expires_at > func.clock_timestamp())


class ShareLinkSchema(AnswerSchema):
    """A share link, without its token."""

    id = fields.Id("shr")
    record_id = fields.Id("rec")
    expires_in_seconds = fields.Integer(1, MAX_LIFETIME, description="The lifetime, as requested.")
    expires_at = fields.Time()
    active = fields.Boolean(description="False once it is revoked or has expired.")
    created_at = fields.Time()
    created_by = party_fields.CallerId()
    revoked_at = fields.Time(allow_none=True)
    opened = fields.Count(
        description="Requests that the link opened: page and exports, by people or robots.",
    )
    last_opened_at = fields.Time(allow_none=True)


def mint(
    session: Session, caller: Caller, record_id: UUID | None, lifetime: int, base_url: str
) -> dict[str, Any]:
    """Create a link for `lifetime` seconds; return it as JSON with its `url`, only this once.

    Raises `Invalid` for a lifetime beyond `MAX_LIFETIME`, `NotFound` when the record does not exist
    or the caller may not see it, and `TooManyShareLinks` when the record has 100 active links.
    """
    if not 1 <= lifetime <= MAX_LIFETIME:
        text = f"Send an integer from 1 to {MAX_LIFETIME}."
        raise Invalid(FieldError("/expires_in_seconds", text))
    record = records.find(session, caller, record_id)
    _require_room(session, record)
    now = database_now(session)
    token = share_tokens.new()
    row = ShareLink(
        tenant_id=caller.tenant_id,
        id=ids.new(now),
        record_id=record.id,
        digest=share_tokens.digest(token),
        created_at=now,
        created_by=caller.key_id,
        expires_at=now + timedelta(seconds=lifetime),
        opened=0,
    )
    session.add(row)
    session.flush()
    made = represent(row, now)
    _record(session, caller, "create", row, {"expires_at": made["expires_at"]})
    return {**made, "url": url(base_url, token)}


def url(base_url: str, token: str) -> str:
    """Return the address of the page that a token opens."""
    return f"{base_url}/s/{token}"


def rows(
    session: Session, caller: Caller, record_id: UUID | None, before: UUID | None, limit: int
) -> Sequence[ShareLink]:
    """Return up to `limit` of a record's links, newest first, older than `before`.

    Raises `NotFound` when the record does not exist or the caller may not see it.
    """
    record = records.find(session, caller, record_id)
    query = (
        select(ShareLink)
        .where(ShareLink.tenant_id == caller.tenant_id, ShareLink.record_id == record.id)
        .order_by(ShareLink.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(ShareLink.id < before)
    return session.scalars(query).all()


def active_first(session: Session, record: Record, limit: int) -> Sequence[ShareLink]:
    """Return a record's links, active ones before those that ended, newest first."""
    return session.scalars(
        select(ShareLink)
        .where(ShareLink.tenant_id == record.tenant_id, ShareLink.record_id == record.id)
        .order_by(_IS_ACTIVE.desc(), ShareLink.id.desc())
        .limit(limit)
    ).all()


def revoke(
    session: Session, caller: Caller, record_id: UUID | None, share_link_id: UUID | None
) -> None:
    """Revoke a link at once and for good; does nothing if it is revoked already.

    Raises `NotFound` when the caller may not see the record, or the record has no such link.
    """
    record = records.find(session, caller, record_id)
    row = session.scalar(
        select(ShareLink)
        .where(
            ShareLink.tenant_id == caller.tenant_id,
            ShareLink.id == share_link_id,
            ShareLink.record_id == record.id,
        )
        .with_for_update(key_share=True)
    )
    if row is None:
        raise NotFound("This record has no share link with this id.")
    if row.revoked_at is not None:
        return
    row.revoked_at = database_now(session)
    session.flush()
    _record(session, caller, "revoke", row, {})


def represent(row: ShareLink, now: datetime) -> dict[str, Any]:
    """Return a link's JSON representation at the database's `now`, without its token."""
    lifetime = (row.expires_at - row.created_at) // timedelta(seconds=1)
    active = row.revoked_at is None and row.expires_at > now
    return ShareLinkSchema.of(row, expires_in_seconds=lifetime, active=active)


def _require_room(session: Session, record: Record) -> None:
    # Of two concurrent calls the second waits here, and then counts the first one's link.
    session.execute(
        select(Record.id)
        .where(Record.tenant_id == record.tenant_id, Record.id == record.id)
        .with_for_update(key_share=True)
    )
    active = session.scalar(
        select(func.count())
        .select_from(ShareLink)
        .where(
            ShareLink.tenant_id == record.tenant_id,
            ShareLink.record_id == record.id,
            _IS_ACTIVE,
        )
    )
    if active is not None and active >= MAX_ACTIVE:
        raise TooManyShareLinks(
            f"This record has {MAX_ACTIVE} active share links; revoke one that is not needed."
        )


def _record(
    session: Session, caller: Caller, verb: str, row: ShareLink, details: dict[str, Any]
) -> None:
    target = ("share_link", ids.text("shr", row.id))
    details = {"record_id": ids.text("rec", row.record_id), **details}
    chain.append_by(session, caller, f"share_link.{verb}", target=target, details=details)


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
