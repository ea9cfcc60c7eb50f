"""Appends to the tenant's audit chain, in the transaction of the privileged action.

The chain's head is locked until the commit, so it cannot fork, and `body` holds the hashed bytes.
Everything but time, link and number is written before the lock; the database's function
`append_audit_entry` does the rest in one round trip.
"""

import secrets
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import view
from app.core.callers import OPERATOR, Actor, Caller
from app.database import cursor
from app.errors import AuditChainBroken
from app.ledger import hash_chain, leaves
from app.ledger.hash_chain import Head, Outcome, Reason
from app.ledger.leaves import SALT_BYTES
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.models import Tenant

MAX_SEQ = 2**53 - 1
"""The largest number an entry can have: an integer of I-JSON (RFC 7493 section 2.2)."""

_APPEND = """
SELECT number, digest FROM append_audit_entry(%s, %s, %s, %s, %s, %b, %b, %b, %b)
"""


def begin(session: Session, tenant_id: UUID, actor: Actor, details: Mapping[str, Any]) -> None:
    """Begin a tenant's chain with its entry 1, `tenant.create`."""
    cursor(session).execute(
        "INSERT INTO audit_heads (tenant_id, seq, hash) VALUES (%s, 0, %s)",
        (tenant_id, bytes.fromhex(hash_chain.GENESIS)),
    )
    append(
        session,
        tenant_id,
        actor,
        "tenant.create",
        target=("tenant", ids.text("ten", tenant_id)),
        details=details,
    )


def append(
    session: Session,
    tenant_id: UUID,
    actor: Actor,
    action: str,
    *,
    target: tuple[str, str],
    details: Mapping[str, Any] | None = None,
    request_id: str | None = None,
    origin: str | None = None,
    outcome: Outcome = Outcome.SUCCESS,
) -> Head:
    """Append one entry and return the head that the chain has with it.

    `target` is (type, id as callers see it); `details` is JSON without anything secret; `origin` is
    the address that a request came from. Call it last in a transaction: it holds the tenant's head
    until the commit. Raises `AuditChainBroken` where the chain's head is none that an append left;
    nothing was written then.
    """
    draft = hash_chain.draft(
        {
            "tenant_id": ids.text("ten", tenant_id),
            "actor": actor.members(),
            "action": action,
            "target": {"type": target[0], "id": target[1]},
            "details": dict(details or {}),
            "request_id": request_id,
            "origin": origin,
            "outcome": str(outcome),
        }
    )
    copies = (action, actor.id, target[1], str(outcome))
    ((seq, digest),) = cursor(session).execute(_APPEND, (tenant_id, *copies, *draft)).fetchall()
    if digest is not None:
        return Head(seq, digest.hex())
    # The head is none that an entry can follow: it is missing, or not at the end.
    if seq is None:
        raise view.broken(1, Reason.MISSING, "a row in audit_heads", "none")
    if not 0 < seq <= MAX_SEQ:
        raise view.broken(1, Reason.MISSING, "a head that an entry can follow", f"seq {seq}")
    raise view.broken(seq, Reason.BEYOND_END, "nothing behind the head", f"entry {seq}")


def append_by(
    session: Session,
    caller: Caller,
    action: str,
    *,
    target: tuple[str, str],
    details: Mapping[str, Any] | None = None,
    outcome: Outcome = Outcome.SUCCESS,
) -> Head:
    """Append a caller's act, with its key, request and address; as `append` otherwise."""
    return append(
        session,
        caller.tenant_id,
        caller.actor(),
        action,
        target=target,
        details=details,
        request_id=caller.request_id,
        origin=caller.origin,
        outcome=outcome,
    )


def append_to_all(
    session: Session, action: str, *, target: tuple[str, str], details: Mapping[str, Any]
) -> dict[UUID, AuditChainBroken]:
    """Append an operator's act to every tenant's chain, in a session that sees all tenants.

    Returns the chains that are broken and have no entry of it: one tenant's chain stops no act for
    all of them.
    """
    broken = {}
    for tenant_id in session.scalars(select(Tenant.id).order_by(Tenant.id)).all():
        error = append_if_whole(session, tenant_id, action, target=target, details=details)
        if error is not None:
            broken[tenant_id] = error
    return broken


def append_if_whole(
    session: Session,
    tenant_id: UUID,
    action: str,
    *,
    target: tuple[str, str],
    details: Mapping[str, Any],
    actor: Actor = OPERATOR,
) -> AuditChainBroken | None:
    """Append an operator's act; return the error, and write nothing, where the chain is broken.

    An operator needs their commands most after the database was tampered with.
    """
    try:
        append(session, tenant_id, actor, action, target=target, details=details)
    except AuditChainBroken as error:
        return error
    return None


def new_salt(master_keys: MasterKeys, tenant_id: UUID) -> tuple[bytes, bytes]:
    """Return a fresh salt (32 random bytes), and its seal for its tenant."""
    salt = secrets.token_bytes(SALT_BYTES)
    return salt, master_keys.seal(salt, salt_identity(tenant_id))


def salt_fault(
    master_keys: MasterKeys, tenant_id: UUID, salt: bytes | None, seal: bytes | None
) -> str | None:
    """Say what is wrong with a salt and its seal; None if this salt was sealed for this tenant."""
    if salt is None or seal is None:
        return "a salt without its seal" if seal is None else "a seal without its salt"
    try:
        opened = master_keys.open(seal, salt_identity(tenant_id))
    except CannotOpen as error:
        return f"a seal that does not open: {error}"
    return None if opened == salt else "the seal of another salt"


def chain_name(session: Session, master_keys: MasterKeys, tenant_id: UUID) -> bytes:
    """Return what a tenant's chain is called in the log.

    Raises `AuditChainBroken` at entry 1 where the salt is not the one that was sealed.
    """
    wanted = select(Tenant.chain_salt, Tenant.chain_seal).where(Tenant.id == tenant_id)
    salt, seal = session.execute(wanted).one()
    found = salt_fault(master_keys, tenant_id, salt, seal)
    if found is not None or salt is None:
        expected = "the chain's salt as it was sealed under MASTER_KEYS"
        raise view.broken(1, "other_chain", expected, found or "none")
    return leaves.chain_name(salt)


def salt_identity(tenant_id: UUID) -> str:
    """Name the place of a chain's salt, for which it is sealed."""
    return f"tenants/{tenant_id}/chain_salt"
