"""Appending to the tenant's audit chain: every privileged action does, in its own transaction.

No entry, no action; no action, no entry. The head row is locked for the append, so the chain cannot
fork, and `body` holds exactly the bytes that were hashed. The lock is held until the commit, and
whoever appends to the same chain waits for it: so all but the time, the link and the number is
written before, and the database's function `append_audit_entry` does the rest in one round trip.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.callers import Actor
from app.database import cursor
from app.ledger import hash_chain
from app.ledger.hash_chain import Head

_APPEND = "SELECT number, digest FROM append_audit_entry(%s, %s, %b, %b, %b, %b)"


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
) -> Head:
    """Append one entry and return the head that the chain has with it.

    `target` is (type, id as callers see it); `details` is JSON without anything secret. Call it
    last in a transaction: it holds the tenant's head until the commit.
    """
    draft = hash_chain.draft(
        {
            "tenant_id": ids.text("ten", tenant_id),
            "actor": _actor_json(actor),
            "action": action,
            "target": {"type": target[0], "id": target[1]},
            "details": dict(details or {}),
            "request_id": request_id,
        }
    )
    ((seq, digest),) = cursor(session).execute(_APPEND, (tenant_id, action, *draft)).fetchall()
    if seq is None:
        raise LookupError(f"tenant {tenant_id} has no audit chain")
    return Head(seq, digest.hex())


def _actor_json(actor: Actor) -> dict[str, str]:
    named = {"type": actor.type, "id": actor.id}
    return named if actor.role is None else {**named, "role": actor.role}
