"""An operator's way back into a tenant: suspend and resume it, revoke its keys, mint one.

A suspended tenant's keys answer 403 and its share links and public records open nothing; its
deliveries and digests wait. Nothing is lost: after `resume` all goes on.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain
from app.core.callers import OPERATOR, Role
from app.database import cursor, database_now
from app.errors import NotFound
from app.lib import api_keys
from app.models import ApiKey, Tenant

# In one statement a key that is being minted would be missed: who mints it holds its parent's row.
_SUSPEND_KEYS = """
UPDATE api_keys SET revoked_at = clock_timestamp(), suspended_at = clock_timestamp()
 WHERE tenant_id = %s AND revoked_at IS NULL
"""
_RESUME_KEYS = """
UPDATE api_keys SET revoked_at = NULL, suspended_at = NULL
 WHERE tenant_id = %s AND suspended_at IS NOT NULL
"""


def suspend(session: Session, tenant_id: UUID, reason: str | None) -> bool:
    """Suspend a tenant; return False where it was suspended before.

    Raises `NotFound` for no tenant. Locks every key of the tenant until the transaction ends.
    """
    tenant = _locked(session, tenant_id)
    if tenant.suspended_at is not None:
        return False
    tenant.suspended_at = database_now(session)
    while cursor(session).execute(_SUSPEND_KEYS, (tenant_id,)).rowcount:
        pass
    _record(session, tenant_id, "tenant.suspend", {} if reason is None else {"reason": reason})
    return True


def resume(session: Session, tenant_id: UUID) -> bool:
    """Resume a suspended tenant; return False where it was none. Raises `NotFound`.

    Keys that were revoked before it was suspended, or meanwhile, stay revoked.
    """
    tenant = _locked(session, tenant_id)
    if tenant.suspended_at is None:
        return False
    tenant.suspended_at = None
    cursor(session).execute(_RESUME_KEYS, (tenant_id,))
    _record(session, tenant_id, "tenant.resume", {})
    return True


def revoke_keys(session: Session, tenant_id: UUID) -> int:
    """Revoke every key of a tenant for good; return how many were not revoked yet.

    Raises `NotFound`.
    """
    _locked(session, tenant_id)
    revoked: list[ApiKey] = []
    while good := _lock_good_keys(session, tenant_id):
        for key in good:
            key.revoked_at, key.suspended_at = database_now(session), None
        session.flush()
        revoked += good
    for key in revoked:
        _record_key(session, key, "key.revoke", {"name": key.name})
    return len(revoked)


def mint(
    session: Session, tenant_id: UUID, name: str, role: Role, expires_at: datetime | None
) -> str:
    """Mint a key without a pin; return its text, which is not kept. Raises `NotFound`.

    One of a suspended tenant is suspended too.
    """
    tenant = _locked(session, tenant_id)
    suspended_at = tenant.suspended_at and database_now(session)
    key_text = api_keys.new()
    key = ApiKey(
        tenant_id=tenant_id,
        id=ids.new(),
        name=name,
        role=role,
        digest=api_keys.digest(key_text),
        expires_at=expires_at,
        revoked_at=suspended_at,
        suspended_at=suspended_at,
    )
    session.add(key)
    session.flush()
    expiry = {} if expires_at is None else {"expires_at": rfc3339(expires_at)}
    _record_key(session, key, "key.mint", {"name": name, "role": str(role), **expiry})
    return key_text


def _locked(session: Session, tenant_id: UUID) -> Tenant:
    wanted = select(Tenant).where(Tenant.id == tenant_id).with_for_update(key_share=True)
    tenant = session.scalars(wanted).one_or_none()
    if tenant is None:
        raise NotFound(
            f"There is no tenant {ids.text('ten', tenant_id)}: `tenant list` names all there are."
        )
    return tenant


def _lock_good_keys(session: Session, tenant_id: UUID) -> list[ApiKey]:
    """Lock the keys that are good, or would be after `resume`."""
    good = or_(ApiKey.revoked_at.is_(None), ApiKey.suspended_at.is_not(None))
    query = select(ApiKey).where(ApiKey.tenant_id == tenant_id, good).order_by(ApiKey.id)
    return list(session.scalars(query.with_for_update()).all())


def _record(session: Session, tenant_id: UUID, action: str, details: Mapping[str, Any]) -> None:
    target = ("tenant", ids.text("ten", tenant_id))
    chain.append(session, tenant_id, OPERATOR, action, target=target, details=details)


def _record_key(session: Session, key: ApiKey, action: str, details: Mapping[str, Any]) -> None:
    target = ("key", ids.text("key", key.id))
    chain.append(session, key.tenant_id, OPERATOR, action, target=target, details=details)
