"""Share links: the holder may read one record and its exports until the link ends.

The token is shown once, in the URL, and stored as SHA-256; lists and the audit chain use the link's
id.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller
from app.core.records import records
from app.database import database_now
from app.errors import FieldError, Invalid, NotFound, TooManyShareLinks
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
