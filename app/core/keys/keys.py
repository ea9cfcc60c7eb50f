"""API keys, the resource: mint (the text is shown once), list, revoke."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy import ColumnElement, Select, func, select, union_all
from sqlalchemy.orm import Session, aliased

from app import ids
from app.clock import rfc3339
from app.core import feeds
from app.core.audit import chain
from app.core.callers import Caller, Pin, Role
from app.core.keys.console_sessions import IDLE
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
from app.models import Agent, ApiKey, KnownPerson
from app.schemas import fields, party_fields
from app.schemas.schema import AnswerSchema, Schema

_NO_KEY = "There is no such key."


class PinSchema(Schema):
    """The one agent and principal whose resources a pinned key may access."""

    agent_id = fields.Id("agt", required=True)
    principal = fields.Text(200, required=True, example="alice@example.com")


class MinterSchema(AnswerSchema):
    """The key, or the person in the console, that minted a key."""

    id = party_fields.CallerId()
    name = fields.Text(
        200, allow_none=True, description="Null: it lies outside the pin of the key in use."
    )


class KeySchema(AnswerSchema):
    """A key, without its text."""

    id = fields.Id("key")
    name = fields.Text(200)
    role = fields.Choice(Role)
    pin = fields.Object(PinSchema, allow_none=True)
    expires_at = fields.Time(allow_none=True)
    created_at = fields.Time()
    created_by = party_fields.CallerId(allow_none=True)
    minted_by = fields.Object(
        MinterSchema,
        allow_none=True,
        description="Who `created_by` names, with the name. Null: the operator minted it.",
    )
    last_used_at = fields.Time(
        allow_none=True,
        description="The minute when it was used last, known within half a minute. Null: never.",
        example="2026-01-31T12:00:00.000000Z",
    )
    revoked_at = fields.Time(allow_none=True)


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


def mint(session: Session, caller: Caller, wanted: NewKey) -> dict[str, Any]:
    """Mint a key; return its JSON representation with its text as `key`, only this once.

    Raises `InsufficientRole` for a role above the caller's own, `WiderThanPin` when a pinned caller
    wants another pin, `Invalid` for an agent that does not exist or an expiry in the past,
    `OutlivesParent` for an expiry after the caller's own. The default is the caller's own expiry.
    """
    if not caller.role.allows(wanted.role):
        raise InsufficientRole(
            f"A key with the role {caller.role} cannot mint one with the role {wanted.role}; "
            f"this needs the role {wanted.role}."
        )
    if caller.pin is not None and wanted.pin != caller.pin:
        raise WiderThanPin("A pinned key mints only keys with its own pin; send the same pin.")
    parent = _lock_parent(session, caller)
    pin = wanted.pin
    if pin is not None and session.get(Agent, (caller.tenant_id, pin.agent_id)) is None:
        raise Invalid(FieldError("/pin/agent_id", "There is no such agent."))
    expires_at = _expiry(session, parent, wanted)
    key_text = api_keys.new()
    row = ApiKey(
        tenant_id=caller.tenant_id,
        id=ids.new(),
        name=wanted.name,
        role=wanted.role,
        pin_agent_id=wanted.pin and wanted.pin.agent_id,
        pin_principal=wanted.pin and wanted.pin.principal,
        digest=api_keys.digest(key_text),
        created_by=caller.key_id,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    minter = parent or caller.person
    made = represent(Minted(row, minter.name if minter else None))
    details = {name: made[name] for name in _AUDITED}
    chain.append_by(session, caller, "key.mint", target=("key", made["id"]), details=details)
    return {**made, "key": key_text}


def rows(
    session: Session, caller: Caller, before: UUID | None, limit: int, q: str | None = None
) -> Sequence[Minted]:
    """Return up to `limit` keys that the caller may see, newest first, older than `before`.

    The words of `q` must all be in their names (see `feeds.named`).
    """
    query = _minted(caller).order_by(ApiKey.id.desc()).limit(limit)
    if q is not None:
        visible = select(ApiKey).where(*_visible_to(caller))
        some = feeds.named(session, visible, ApiKey.id, ApiKey.name, q, before, limit)
        found = session.execute(query.where(ApiKey.id.in_([each.id for each in some])))
        return feeds.Page((Minted(*row) for row in found), some.read_to)
    if before is not None:
        query = query.where(ApiKey.id < before)
    return [Minted(*row) for row in session.execute(query)]


def current(session: Session, caller: Caller, limit: int, **of: UUID) -> Sequence[Minted]:
    """Return up to `limit` keys that were not revoked, newest first: `of` are columns' values."""
    wanted = [getattr(ApiKey, name) == value for name, value in of.items()]
    query = _minted(caller).where(ApiKey.revoked_at.is_(None), *wanted)
    found = session.execute(query.order_by(ApiKey.id.desc()).limit(limit))
    return [Minted(*row) for row in found]


def own(session: Session, caller: Caller) -> Minted:
    """Return the key that the caller used."""
    return find(session, caller, caller.key_id)


def find(session: Session, caller: Caller, key_id: UUID | None) -> Minted:
    """Return one key that the caller may see; raises `NotFound`."""
    row = session.execute(_minted(caller).where(ApiKey.id == key_id)).one_or_none()
    if row is None:
        raise NotFound(_NO_KEY)
    return Minted(*row)


def names(session: Session, tenant_id: UUID, wanted: Iterable[UUID]) -> dict[str, str]:
    """Return the names of a tenant's keys and people by their public ids (`key_…`, `usr_…`)."""
    wanted = list(wanted)
    found = union_all(
        *(
            select(table.id, table.name).where(table.tenant_id == tenant_id, table.id.in_(wanted))
            for table in (ApiKey, KnownPerson)
        )
    )
    return {ids.of_caller(caller_id): name for caller_id, name in session.execute(found)}


_AUDITED = ("name", "role", "pin", "expires_at")


def represent(minted: Minted) -> dict[str, Any]:
    """Return a key's JSON representation, without its text."""
    row, pin, minter = minted.row, None, None
    if row.pin_agent_id is not None:
        pin = {"agent_id": ids.text("agt", row.pin_agent_id), "principal": row.pin_principal}
    if row.created_by is not None:
        minter = {"id": ids.of_caller(row.created_by), "name": minted.minter}
    return KeySchema.of(row, pin=pin, minted_by=minter)


def _lock_parent(session: Session, caller: Caller) -> ApiKey | None:
    """Lock the minting key: a concurrent revocation waits, and then sees the new key.

    None for a person, who has no key. Raises `Unauthenticated` when the key was revoked since its
    lookup.
    """
    if caller.person is not None:
        return None
    query = select(ApiKey).where(ApiKey.tenant_id == caller.tenant_id, ApiKey.id == caller.key_id)
    row = session.scalar(query.with_for_update(read=True))
    if row is None or row.revoked_at is not None:
        raise Unauthenticated(BAD_KEY)
    return row


def _expiry(session: Session, parent: ApiKey | None, wanted: NewKey) -> datetime | None:
    """Return the expiry of a key: what is wanted, else that of the key that mints it."""
    now, by_term = database_now(session), wanted.expires_in is not None
    expires_at = wanted.expires_at if wanted.expires_in is None else now + wanted.expires_in
    if not by_term and expires_at is not None and expires_at <= now:
        raise Invalid(FieldError("/expires_at", "Send a time in the future."))
    latest = None if parent is None else parent.expires_at
    if latest is None or expires_at is None:
        return expires_at or latest
    if expires_at > latest:
        until = rfc3339(latest)
        raise OutlivesParent(
            FieldError("/expires_in", f"Send nothing, or an expires_at of {until} or earlier.")
            if by_term
            else FieldError("/expires_at", f"Send {until} or earlier, or nothing."),
            detail=f"The key that mints this one expires at {until}.",
        )
    return expires_at


def _minted(caller: Caller) -> Select[ApiKey, str | None]:
    """Select the keys that the caller may see, with the names of visible minters."""
    minter, person = aliased(ApiKey), aliased(KnownPerson)
    same, by_person = (
        (each.tenant_id == ApiKey.tenant_id) & (each.id == ApiKey.created_by)
        for each in (minter, person)
    )
    if caller.pin is not None:
        same &= (minter.pin_agent_id == caller.pin.agent_id) & (
            minter.pin_principal == caller.pin.principal
        )
    # A person has no pin, so a pinned key does not see them.
    name = minter.name if caller.pin else func.coalesce(minter.name, person.name)
    joined = select(ApiKey, name).outerjoin(minter, same).outerjoin(person, by_person)
    return joined.where(*_visible_to(caller))


def _visible_to(caller: Caller) -> list[ColumnElement[bool]]:
    """Return the conditions of visibility; a pinned caller sees keys with its pin, also its own."""
    seen = [ApiKey.tenant_id == caller.tenant_id]
    if caller.pin is not None:
        seen.append(ApiKey.pin_agent_id == caller.pin.agent_id)
        seen.append(ApiKey.pin_principal == caller.pin.principal)
    return seen


def locked(session: Session, caller: Caller, key_id: UUID | None) -> ApiKey:
    """Return one key that the caller may see, locked; raises `NotFound`."""
    query = select(ApiKey).where(*_visible_to(caller), ApiKey.id == key_id)
    row = session.scalar(query.with_for_update())
    if row is None:
        raise NotFound(_NO_KEY)
    return row


MOST = 1000
"""The count of descendants stops after this many."""

# Also follows ended keys, as keys that they minted may be valid; stops at the LIMIT of rows.
_EFFECTS = """
WITH RECURSIVE minted AS (
    SELECT id, revoked_at, expires_at FROM api_keys
     WHERE tenant_id = %(tenant)s AND created_by = %(key)s
    UNION ALL
    SELECT k.id, k.revoked_at, k.expires_at FROM minted AS m
      JOIN api_keys AS k ON k.tenant_id = %(tenant)s AND k.created_by = m.id
), minters AS (
    SELECT created_by AS id FROM api_keys WHERE tenant_id = %(tenant)s AND id = %(own)s
    UNION
    SELECT k.created_by FROM minters AS m
      JOIN api_keys AS k ON k.tenant_id = %(tenant)s AND k.id = m.id
)
SELECT (SELECT count(*)
          FROM (SELECT FROM minted
                 WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
                 LIMIT %(most)s + 1) AS good) AS descendants,
       EXISTS (SELECT FROM minters WHERE id = %(key)s) AS own,
       (SELECT count(*) FROM console_sessions
         WHERE tenant_id = %(tenant)s AND api_key_id = %(key)s AND expires_at > clock_timestamp()
           AND last_used_at > clock_timestamp() - %(idle)s) AS sessions
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
    wanted: dict[str, Any] = {"tenant": caller.tenant_id, "key": key_id, "own": caller.key_id}
    wanted |= {"most": MOST, "idle": IDLE}
    return cursor(session, class_row(Effects)).execute(_EFFECTS, wanted).fetchall()[0]


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
