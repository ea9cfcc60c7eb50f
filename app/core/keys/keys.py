"""API keys, the resource: mint (the text is shown once), list and revoke."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session, aliased

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import Caller, Pin, Role
from app.core.keys.console_sessions import IDLE, LONGEST
from app.database import cursor, database_now
from app.errors import (
    BAD_KEY,
    CannotRevokeOwnKey,
    FieldError,
    InsufficientRole,
    Invalid,
    NotFound,
    OutlivesParent,
    Unauthenticated,
    WiderThanPin,
)
from app.lib.crypto import api_keys
from app.models import Agent, ApiKey

_NO_KEY = "There is no such key."
_AUDITED = ("name", "role", "pin", "expires_at")
MOST_DESCENDANTS = 1000
"""The count of what a key minted stops after this many."""

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
class NewKey:
    """A key to be minted; `expires_at` is aware, `expires_in` from now; neither: no expiry."""

    name: str
    role: Role
    pin: Pin | None = None
    expires_at: datetime | None = None
    expires_in: timedelta | None = None


@dataclass(frozen=True)
class Minted:
    """A key, with the name of the key that minted it if the caller may see that one."""

    row: ApiKey
    minter: str | None

    @property
    def id(self) -> UUID:
        """The key's id."""
        return self.row.id


@dataclass(frozen=True)
class RevocationEffects:
    """The numbers of valid keys that descend from a key, and of its console sessions.

    `own` says that the caller's key is among the descendants, so that it cannot revoke them all.
    """

    descendants: int
    own: bool
    sessions: int


def mint(session: Session, caller: Caller, wanted: NewKey) -> dict[str, Any]:
    """Mint a key; return its JSON representation with its text as `key`, only this once.

    Raises `InsufficientRole` for a role above the caller's own, `WiderThanPin` when a pinned caller
    wants another pin, `Invalid` for an agent that does not exist or an expiry in the past,
    `OutlivesParent` for an expiry after the caller's own, and `Unauthenticated` if the caller's key
    was revoked meanwhile. The default is the caller's own expiry.
    """
    if not caller.role.allows(wanted.role):
        raise InsufficientRole(
            f"A key with the role {caller.role} cannot mint one with the role {wanted.role}; "
            f"this needs the role {wanted.role}."
        )
    if caller.pin is not None and wanted.pin != caller.pin:
        raise WiderThanPin("A pinned key mints only keys with its own pin; send the same pin.")
    # A concurrent revocation waits for this lock, and then sees the new key.
    used = select(ApiKey).where(ApiKey.tenant_id == caller.tenant_id, ApiKey.id == caller.key_id)
    parent = session.scalar(used.with_for_update(read=True))
    if parent is None or parent.revoked_at is not None:
        raise Unauthenticated(BAD_KEY)
    pin = wanted.pin
    if pin is not None and session.get(Agent, (caller.tenant_id, pin.agent_id)) is None:
        raise Invalid(FieldError("/pin/agent_id", "There is no such agent."))
    expires_at = _end(session, parent, wanted)
    key_text = api_keys.new()
    row = ApiKey(
        tenant_id=caller.tenant_id,
        id=ids.new(),
        name=wanted.name,
        role=wanted.role,
        pin_agent_id=pin and pin.agent_id,
        pin_principal=pin and pin.principal,
        digest=api_keys.digest(key_text),
        created_by=caller.key_id,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    made = represent(Minted(row, parent.name))
    details = {name: made[name] for name in _AUDITED}
    chain.append_by(session, caller, "key.mint", target=("key", made["id"]), details=details)
    return {**made, "key": key_text}


def rows(session: Session, caller: Caller, before: UUID | None, limit: int) -> Sequence[Minted]:
    """Return up to `limit` keys that the caller may see, newest first, older than `before`."""
    query = _minted(caller).order_by(ApiKey.id.desc()).limit(limit)
    if before is not None:
        query = query.where(ApiKey.id < before)
    return [Minted(*row) for row in session.execute(query)]


def own(session: Session, caller: Caller) -> Minted:
    """Return the key that the caller used."""
    return Minted(*session.execute(_minted(caller).where(ApiKey.id == caller.key_id)).one())


def find(session: Session, caller: Caller, key_id: UUID | None) -> Minted:
    """Return one key that the caller may see; raises `NotFound`."""
    row = session.execute(_minted(caller).where(ApiKey.id == key_id)).one_or_none()
    if row is None:
        raise NotFound(_NO_KEY)
    return Minted(*row)


def names(session: Session, tenant_id: UUID, wanted: Iterable[UUID]) -> dict[str, str]:
    """Return the names of a tenant's keys by their public ids (`key_…`)."""
    query = select(ApiKey.id, ApiKey.name).where(
        ApiKey.tenant_id == tenant_id, ApiKey.id.in_(wanted)
    )
    return {ids.text("key", key_id): name for key_id, name in session.execute(query)}


def revoke(
    session: Session, caller: Caller, key_id: UUID | None, *, descendants: bool = False
) -> None:
    """Revoke a key at once and for good; does nothing if it is revoked already.

    With `descendants` also every key that it minted, that those minted, and so on. Raises
    `NotFound`, and `CannotRevokeOwnKey` if the caller's key is among them.
    """
    row = _locked(session, caller, key_id)
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


def revocation_effects(session: Session, caller: Caller, key_id: UUID) -> RevocationEffects:
    """Return the effects of revoking a key; counts at most `MOST_DESCENDANTS` + 1 descendants."""
    wanted = {
        "tenant": caller.tenant_id,
        "key": key_id,
        "own": caller.key_id,
        "most": MOST_DESCENDANTS,
    }
    sessions = (caller.tenant_id, key_id, LONGEST, IDLE)
    cur = cursor(session, scalar_row)
    return RevocationEffects(
        descendants=cur.execute(_DESCENDANTS, wanted).fetchone() or 0,
        own=bool(cur.execute(_ANCESTORS, wanted).fetchone()),
        sessions=cur.execute(_SESSIONS, sessions).fetchone() or 0,
    )


def represent(minted: Minted) -> dict[str, Any]:
    """Return a key's JSON representation, without its text."""
    row = minted.row
    return {
        "id": ids.text("key", row.id),
        "name": row.name,
        "role": row.role,
        "pin": row.pin_agent_id
        and {"agent_id": ids.text("agt", row.pin_agent_id), "principal": row.pin_principal},
        "expires_at": row.expires_at and rfc3339(row.expires_at),
        "created_at": rfc3339(row.created_at),
        "created_by": row.created_by and ids.text("key", row.created_by),
        "minted_by": row.created_by
        and {"id": ids.text("key", row.created_by), "name": minted.minter},
        "last_used_at": row.last_used_at and rfc3339(row.last_used_at),
        "revoked_at": row.revoked_at and rfc3339(row.revoked_at),
    }


def _end(session: Session, parent: ApiKey, wanted: NewKey) -> datetime | None:
    """Return the expiry of a key, by default that of its parent; raises as `mint` does."""
    now = database_now(session)
    expires_at = wanted.expires_at if wanted.expires_in is None else now + wanted.expires_in
    if wanted.expires_in is None and expires_at is not None and expires_at <= now:
        raise Invalid(FieldError("/expires_at", "Send a time in the future."))
    if parent.expires_at is None or expires_at is None:
        return expires_at or parent.expires_at
    if expires_at > parent.expires_at:
        until = rfc3339(parent.expires_at)
        error = FieldError("/expires_at", f"Send {until} or earlier, or nothing.")
        if wanted.expires_in is not None:
            text = f"Send nothing, or an expires_at of {until} or earlier."
            error = FieldError("/expires_in", text)
        raise OutlivesParent(error, detail=f"The key that mints this one expires at {until}.")
    return expires_at


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


def _minted(caller: Caller) -> Select[ApiKey, str | None]:
    """Select the keys that the caller may see, with the names of visible minters."""
    minter = aliased(ApiKey)
    same = (minter.tenant_id == ApiKey.tenant_id) & (minter.id == ApiKey.created_by)
    if caller.pin is not None:
        same &= (minter.pin_agent_id == caller.pin.agent_id) & (
            minter.pin_principal == caller.pin.principal
        )
    return select(ApiKey, minter.name).outerjoin(minter, same).where(*_visible_to(caller))


def _visible_to(caller: Caller) -> list[ColumnElement[bool]]:
    """Return the conditions of visibility; a pinned caller sees keys with its pin, also its own."""
    tenant = ApiKey.tenant_id == caller.tenant_id
    if caller.pin is None:
        return [tenant]
    return [
        tenant,
        ApiKey.pin_agent_id == caller.pin.agent_id,
        ApiKey.pin_principal == caller.pin.principal,
    ]


def _locked(session: Session, caller: Caller, key_id: UUID | None) -> ApiKey:
    query = select(ApiKey).where(*_visible_to(caller), ApiKey.id == key_id)
    row = session.scalar(query.with_for_update())
    if row is None:
        raise NotFound(_NO_KEY)
    return row
