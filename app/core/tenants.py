"""Tenants: made by an operator, who may suspend and resume one, revoke its keys, and mint one.

A suspended tenant's keys get 403, its shared pages are closed, and its deliveries and digests wait
until `resume`. A broken audit chain stops no action: the action then has no audit entry, and
`untold` says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy import or_, select, text
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import OPERATOR, Role
from app.database import Database, cursor, database_now
from app.errors import AuditChainBroken, NotFound
from app.lib.crypto import api_keys
from app.lib.crypto.sealing import MasterKeys
from app.models import ApiKey, Tenant

_Result = TypeVar("_Result")

ROOT_KEY_NAME = "root"
# Advisory lock number; unique in this database.
_SEED_LOCK = 7_264_301_559


def create(
    database: Database, master_keys: MasterKeys, name: str, *, root_key: str | None = None
) -> tuple[UUID, str]:
    """Create a tenant with its chain and root admin key; return the tenant's id and the key's text.

    `root_key` is the text of the key to install; by default a new one is generated. The text is not
    stored.
    """
    tenant_id = ids.new()
    key_text = root_key or api_keys.new()
    salt, seal = chain.new_salt(master_keys, tenant_id)
    with database.transaction(tenant_id) as session:
        session.add(Tenant(id=tenant_id, name=name, chain_salt=salt, chain_seal=seal))
        session.flush()
        key = _key(tenant_id, ROOT_KEY_NAME, Role.ADMIN, key_text)
        session.add(key)
        session.flush()
        chain.begin(session, tenant_id, OPERATOR, {"name": name})
        chain.append(
            session,
            tenant_id,
            OPERATOR,
            "key.mint",
            target=("key", ids.text("key", key.id)),
            details={"name": ROOT_KEY_NAME, "role": "admin"},
        )
    return tenant_id, key_text


def seed(
    database: Database, master_keys: MasterKeys, root_key: str, *, name: str = "default"
) -> bool:
    """Create the first tenant with the operator's key, unless that key exists already.

    Returns whether a tenant was created. A revoked root key stays revoked: it exists.
    """
    with database.across_tenants() as session:
        # Two releases at once: the second waits here, and then knows the first one's key.
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _SEED_LOCK})
        digest = api_keys.digest(root_key)
        if session.scalar(select(ApiKey.id).where(ApiKey.digest == digest)) is not None:
            return False
        create(database, master_keys, name, root_key=root_key)
    return True


def name(session: Session, tenant_id: UUID) -> str:
    """Return the name of a tenant, which has to exist."""
    return session.scalars(select(Tenant.name).where(Tenant.id == tenant_id)).one()


def rows(session: Session) -> list[Tenant]:
    """Return every tenant, oldest first."""
    return list(session.scalars(select(Tenant).order_by(Tenant.id)))


# One statement would miss a key that is being minted: its minter holds the parent key's row lock.
_SUSPEND_KEYS = """
UPDATE api_keys SET revoked_at = clock_timestamp(), suspended_at = clock_timestamp()
 WHERE tenant_id = %s AND revoked_at IS NULL
"""
_RESUME_KEYS = """
UPDATE api_keys SET revoked_at = NULL, suspended_at = NULL
 WHERE tenant_id = %s AND suspended_at IS NOT NULL
"""


@dataclass(frozen=True)
class Act(Generic[_Result]):
    """An action's result; `untold` is the break of the audit chain if it could not be audited."""

    result: _Result
    untold: AuditChainBroken | None = None


def suspend(
    session: Session, tenant_id: UUID, reason: str | None, by: str | None = None
) -> Act[bool]:
    """Suspend a tenant; the result is False if it was suspended before.

    Raises `NotFound`. Locks every key of the tenant until the transaction ends.
    """
    tenant = _locked(session, tenant_id)
    if tenant.suspended_at is not None:
        return Act(result=False)
    tenant.suspended_at = database_now(session)
    while cursor(session).execute(_SUSPEND_KEYS, (tenant_id,)).rowcount:
        pass
    details = {} if reason is None else {"reason": reason}
    return Act(result=True, untold=_record(session, tenant_id, "tenant.suspend", details, by))


def resume(session: Session, tenant_id: UUID, by: str | None = None) -> Act[bool]:
    """Resume a suspended tenant; the result is False if it was not suspended. Raises `NotFound`.

    Keys that were revoked before or during the suspension stay revoked.
    """
    tenant = _locked(session, tenant_id)
    if tenant.suspended_at is None:
        return Act(result=False)
    tenant.suspended_at = None
    cursor(session).execute(_RESUME_KEYS, (tenant_id,))
    return Act(result=True, untold=_record(session, tenant_id, "tenant.resume", {}, by))


def revoke_keys(session: Session, tenant_id: UUID) -> Act[int]:
    """Revoke every key of a tenant for good; the result is how many were not revoked yet.

    Raises `NotFound`.
    """
    _locked(session, tenant_id)
    revoked: list[ApiKey] = []
    while good := _lock_good_keys(session, tenant_id):
        for key in good:
            key.revoked_at, key.suspended_at = database_now(session), None
        session.flush()
        revoked += good
    breaks = [_record_key(session, key, "key.revoke", {"name": key.name}) for key in revoked]
    return Act(len(revoked), breaks[0] if breaks else None)


def mint(
    session: Session, tenant_id: UUID, name: str, role: Role, expires_at: datetime | None
) -> Act[str]:
    """Mint a key without a pin; the result is its text, which is not stored. Raises `NotFound`.

    A key of a suspended tenant is suspended too.
    """
    tenant = _locked(session, tenant_id)
    key_text = api_keys.new()
    key = _key(tenant_id, name, role, key_text)
    key.expires_at = expires_at
    key.revoked_at = key.suspended_at = tenant.suspended_at and database_now(session)
    session.add(key)
    session.flush()
    expiry = {} if expires_at is None else {"expires_at": rfc3339(expires_at)}
    details = {"name": name, "role": str(role), **expiry}
    return Act(key_text, _record_key(session, key, "key.mint", details))


def _key(tenant_id: UUID, name: str, role: Role, key_text: str) -> ApiKey:
    digest = api_keys.digest(key_text)
    return ApiKey(tenant_id=tenant_id, id=ids.new(), name=name, role=role, digest=digest)


def _locked(session: Session, tenant_id: UUID) -> Tenant:
    wanted = select(Tenant).where(Tenant.id == tenant_id).with_for_update(key_share=True)
    tenant = session.scalars(wanted).one_or_none()
    if tenant is None:
        raise NotFound(
            f"There is no tenant {ids.text('ten', tenant_id)}: `tenant list` names all there are."
        )
    return tenant


def _lock_good_keys(session: Session, tenant_id: UUID) -> list[ApiKey]:
    """Lock the keys that are valid now, or would be after `resume`."""
    good = or_(ApiKey.revoked_at.is_(None), ApiKey.suspended_at.is_not(None))
    query = select(ApiKey).where(ApiKey.tenant_id == tenant_id, good).order_by(ApiKey.id)
    return list(session.scalars(query.with_for_update()).all())


def _record(
    session: Session, tenant_id: UUID, action: str, details: Mapping[str, Any], by: str | None
) -> AuditChainBroken | None:
    target = ("tenant", ids.text("ten", tenant_id))
    told = {**details, "by": by} if by else details
    return chain.append_if_whole(session, tenant_id, action, target=target, details=told)


def _record_key(
    session: Session, key: ApiKey, action: str, details: Mapping[str, Any]
) -> AuditChainBroken | None:
    target = ("key", ids.text("key", key.id))
    return chain.append_if_whole(session, key.tenant_id, action, target=target, details=details)
