"""API keys: who may call, as what, and for whom; minted once, shown once, ended at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import Caller, Pin, Role
from app.database import Database, database_now
from app.errors import (
    BAD_KEY,
    CannotRevokeOwnKey,
    FieldError,
    InsufficientRole,
    Invalid,
    NotFound,
    OutlivesParent,
    TenantSuspended,
    Unauthenticated,
    WiderThanPin,
)
from app.lib.crypto import api_keys
from app.models import Agent, ApiKey

_LOOKUP = "SELECT tenant_id, id, role, pin_agent_id, pin_principal FROM find_api_key(%s)"

_IS_SUSPENDED = "SELECT is_suspended_key(%s)"

_NO_KEY = "Send an API key: Authorization: Bearer <key>."

# Callers of keys that were good once; beyond these it begins anew rather than eat the memory.
_MOST_KNOWN = 10_000


@dataclass(frozen=True)
class NewKey:
    """What a key is to be; `expires_at` is aware, None for never."""

    name: str
    role: Role
    pin: Pin | None = None
    expires_at: datetime | None = None


def authenticate(database: Database, key_text: str, request_id: str) -> Caller:
    """Return the caller whose key this is, as the key stands at this moment.

    Raises `Unauthenticated`, and `TenantSuspended` for a key that is good again once its tenant is
    resumed. A text that cannot be a key costs no query.
    """
    digest = _digest(key_text)
    row = database.ask(_LOOKUP, (digest,))
    if row is None:
        if database.ask(_IS_SUSPENDED, (digest,)) == (True,):
            raise TenantSuspended("The tenant of this key was suspended by the operator.")
        raise Unauthenticated(BAD_KEY)
    tenant_id, key_id, role, agent_id, principal = row
    pin = None if agent_id is None else Pin(agent_id, principal)
    return Caller(tenant_id, key_id, Role(role), pin, request_id)


class Keyring:
    """Knows callers again; one a process, shared by its threads.

    It remembers what never changes in a key (tenant, id, role, pin), and never whether the key is
    good: one that is revoked or expires does so at once, in every process.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[bytes, Caller] = {}

    def authenticate(self, key_text: str, request_id: str) -> Caller:
        """Return the caller whose key this is, as the key stands at this moment.

        Raises as the function of this name does.
        """
        digest = _digest(key_text)
        try:
            found = authenticate(self._database, key_text, request_id)
        except (Unauthenticated, TenantSuspended):
            self._known.pop(digest, None)
            raise
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[digest] = replace(found, confirmed=False)
        return found

    def recognise(self, key_text: str, request_id: str) -> Caller:
        """Return the caller whose key this is, not `confirmed` if the key was met before.

        Raises as `authenticate` does.
        """
        known = self._known.get(_digest(key_text))
        if known is None:
            return self.authenticate(key_text, request_id)
        return replace(known, request_id=request_id)


def _digest(key_text: str) -> bytes:
    if not key_text:
        raise Unauthenticated(_NO_KEY)
    if not api_keys.well_formed(key_text):
        raise Unauthenticated(BAD_KEY)
    return api_keys.digest(key_text)


def mint(session: Session, caller: Caller, wanted: NewKey) -> dict[str, Any]:
    """Make a key and return it as its GET answers it, with its text as `key`, this once.

    Raises `InsufficientRole` for a role above the caller's own, `WiderThanPin` when a pinned caller
    wants another pin, `Invalid` for an agent that does not exist or a time that has passed,
    `OutlivesParent` for one after the caller's own. Without a time it is the caller's own.
    """
    _refuse_wider(caller, wanted)
    parent = _lock_parent(session, caller)
    if wanted.pin is not None:
        _require_agent(session, caller.tenant_id, wanted.pin.agent_id)
    _require_future(session, wanted.expires_at)
    expires_at = _within(parent, wanted.expires_at)
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
    made = represent(row)
    _record(session, caller, "key.mint", row, {name: made[name] for name in _AUDITED})
    return {**made, "key": key_text}


def rows(session: Session, caller: Caller, before: UUID | None, limit: int) -> Sequence[ApiKey]:
    """Return the keys that the caller may see, newest first, from those made before `before`."""
    query = select(ApiKey).where(*_visible_to(caller)).order_by(ApiKey.id.desc()).limit(limit)
    if before is not None:
        query = query.where(ApiKey.id < before)
    return session.scalars(query).all()


def own(session: Session, caller: Caller) -> ApiKey:
    """Return the key that the caller used."""
    return _find(session, caller, caller.key_id)


def revoke(
    session: Session, caller: Caller, key_id: UUID | None, *, descendants: bool = False
) -> None:
    """End a key, at once and for good; a key that was ended before stays as it is.

    With `descendants` also every key that it minted, that those minted, and so on. Raises
    `NotFound`, and `CannotRevokeOwnKey` where the key in use is among them.
    """
    row = _find(session, caller, key_id, lock=True)
    others = _lock_descendants(session, row) if descendants else []
    if caller.key_id in (row.id, *(other.id for other in others)):
        raise CannotRevokeOwnKey(
            "The key in use cannot revoke itself, nor what it descends from with all descendants; "
            "use another admin key."
        )
    for ended in (row, *others):
        if ended.revoked_at is None:
            ended.revoked_at = database_now(session)
            of = {} if ended is row else {"descends_from": ids.text("key", row.id)}
            _record(session, caller, "key.revoke", ended, {"name": ended.name, **of})


def represent(row: ApiKey) -> dict[str, Any]:
    """Return a key as callers see it: everything but its text."""
    return {
        "id": ids.text("key", row.id),
        "name": row.name,
        "role": row.role,
        "pin": _represent_pin(row),
        "expires_at": row.expires_at and rfc3339(row.expires_at),
        "created_at": rfc3339(row.created_at),
        "created_by": row.created_by and ids.text("key", row.created_by),
        "revoked_at": row.revoked_at and rfc3339(row.revoked_at),
    }


_AUDITED = ("name", "role", "pin", "expires_at")


def _represent_pin(row: ApiKey) -> dict[str, str | None] | None:
    if row.pin_agent_id is None:
        return None
    return {"agent_id": ids.text("agt", row.pin_agent_id), "principal": row.pin_principal}


def _refuse_wider(caller: Caller, wanted: NewKey) -> None:
    if not caller.role.allows(wanted.role):
        raise InsufficientRole(
            f"A key with the role {caller.role} cannot mint one with the role {wanted.role}; "
            f"this needs the role {wanted.role}."
        )
    if caller.pin is not None and wanted.pin != caller.pin:
        raise WiderThanPin("A pinned key mints only keys with its own pin; send the same pin.")


def _lock_parent(session: Session, caller: Caller) -> ApiKey:
    """Lock the minting key: a revocation waits, and then finds what the key minted.

    Raises `Unauthenticated` when it was revoked since it was looked up.
    """
    query = select(ApiKey).where(ApiKey.tenant_id == caller.tenant_id, ApiKey.id == caller.key_id)
    row = session.scalar(query.with_for_update(read=True))
    if row is None or row.revoked_at is not None:
        raise Unauthenticated(BAD_KEY)
    return row


def _within(parent: ApiKey, expires_at: datetime | None) -> datetime | None:
    if parent.expires_at is None or expires_at is None:
        return expires_at or parent.expires_at
    if expires_at > parent.expires_at:
        raise OutlivesParent(
            FieldError("/expires_at", f"Send {rfc3339(parent.expires_at)} or earlier, or nothing."),
            detail=f"The key that mints this one expires at {rfc3339(parent.expires_at)}.",
        )
    return expires_at


def _lock_descendants(session: Session, root: ApiKey) -> list[ApiKey]:
    """Lock what a locked key minted, a generation at a time.

    A locked key mints nothing more, so the next statement finds all that it minted.
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


def _require_agent(session: Session, tenant_id: UUID, agent_id: UUID) -> None:
    if session.get(Agent, (tenant_id, agent_id)) is None:
        raise Invalid(FieldError("/pin/agent_id", "There is no such agent."))


def _require_future(session: Session, expires_at: datetime | None) -> None:
    now = database_now(session)
    if expires_at is not None and expires_at <= now:
        raise Invalid(FieldError("/expires_at", "Send a time in the future."))


def _visible_to(caller: Caller) -> list[ColumnElement[bool]]:
    """A pinned key sees itself and the keys with its pin, which are the same condition."""
    tenant = ApiKey.tenant_id == caller.tenant_id
    if caller.pin is None:
        return [tenant]
    return [
        tenant,
        ApiKey.pin_agent_id == caller.pin.agent_id,
        ApiKey.pin_principal == caller.pin.principal,
    ]


def _find(session: Session, caller: Caller, key_id: UUID | None, *, lock: bool = False) -> ApiKey:
    query = select(ApiKey).where(*_visible_to(caller), ApiKey.id == key_id)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise NotFound("There is no such key.")
    return row


def _record(
    session: Session, caller: Caller, action: str, row: ApiKey, details: dict[str, Any]
) -> None:
    chain.append(
        session,
        caller.tenant_id,
        caller.actor(),
        action,
        target=("key", ids.text("key", row.id)),
        details=details,
        request_id=caller.request_id,
    )
