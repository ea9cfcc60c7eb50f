"""The salt of each tenant's audit chain, which names the chain in the log, and its seal.

A salt counts only with its seal under MASTER_KEYS: otherwise the database's owner could rename a
chain, and its anchors would no longer be compared with it.
"""

import secrets
from typing import NamedTuple
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import view
from app.ledger import leaves
from app.ledger.leaves import SALT_BYTES
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.models import Tenant

_log = structlog.get_logger(__name__)


class Salt(NamedTuple):
    """A salt (32 random bytes), sealed for its tenant."""

    salt: bytes
    seal: bytes


def new(master_keys: MasterKeys, tenant_id: UUID) -> Salt:
    """Return a fresh salt with its seal."""
    salt = secrets.token_bytes(SALT_BYTES)
    return Salt(salt, master_keys.seal(salt, identity(tenant_id)))


def fault(
    master_keys: MasterKeys, tenant_id: UUID, salt: bytes | None, seal: bytes | None
) -> str | None:
    """Say what is wrong with a salt and its seal; None if this salt was sealed for this tenant."""
    if salt is None or seal is None:
        return "a salt without its seal" if seal is None else "a seal without its salt"
    try:
        opened = master_keys.open(seal, identity(tenant_id))
    except CannotOpen as error:
        return f"a seal that does not open: {error}"
    return None if opened == salt else "the seal of another salt"


def is_sealed(
    master_keys: MasterKeys, tenant_id: UUID, salt: bytes | None, seal: bytes | None
) -> bool:
    """Say whether a salt was sealed for this tenant; log it as critical if not."""
    found = fault(master_keys, tenant_id, salt, seal)
    if found is not None:
        _log.critical("audit_chain_not_sealed", tenant_id=ids.text("ten", tenant_id), found=found)
    return found is None


def chain_name(session: Session, master_keys: MasterKeys, tenant_id: UUID) -> bytes:
    """Return what a tenant's chain is called in the log.

    Raises `AuditChainBroken` at entry 1 where the salt is not the one that was sealed.
    """
    wanted = select(Tenant.chain_salt, Tenant.chain_seal).where(Tenant.id == tenant_id)
    salt, seal = session.execute(wanted).one()
    found = fault(master_keys, tenant_id, salt, seal)
    if found is not None or salt is None:
        expected = "the chain's salt as it was sealed under MASTER_KEYS"
        raise view.broken(1, "other_chain", expected, found or "none")
    return leaves.chain_name(salt)


def identity(tenant_id: UUID) -> str:
    """Name the place of a chain's salt, for which it is sealed."""
    return f"tenants/{tenant_id}/chain_salt"
