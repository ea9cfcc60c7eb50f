"""Appending to the tenant's audit chain: every privileged action does, in its own transaction.

No entry, no action; no action, no entry. The head row is locked for the append, so the chain cannot
fork, and `body` holds exactly the bytes that were hashed.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.callers import Actor
from app.database import cursor
from app.ledger import hash_chain

# The time is taken outside the inner SELECT, so when the lock is held: `at` rises with `seq`.
_LOCK = """
SELECT seq, hash, clock_timestamp()
  FROM (SELECT seq, hash FROM audit_heads WHERE tenant_id = %s FOR UPDATE) AS head
"""
_APPEND = """
WITH entry AS (
    INSERT INTO audit_entries (tenant_id, seq, body, hash, action, at)
    VALUES (%s, %s, %b, %b, %s, %s) RETURNING tenant_id, seq, hash)
UPDATE audit_heads AS head SET seq = entry.seq, hash = entry.hash
  FROM entry WHERE head.tenant_id = entry.tenant_id
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
) -> int:
    """Append one entry and return its sequence number.

    `target` is (type, id as callers see it); `details` is JSON without anything secret. Call it
    last in a transaction: it holds the tenant's head until the commit.
    """
    cur = cursor(session)
    head = cur.execute(_LOCK, (tenant_id,)).fetchone()
    if head is None:
        raise LookupError(f"tenant {tenant_id} has no audit chain")
    at: datetime = head[2]
    seq: int = head[0] + 1
    body = hash_chain.entry_bytes(
        {
            "seq": seq,
            "at": rfc3339(at),
            "tenant_id": ids.text("ten", tenant_id),
            "actor": _actor_json(actor),
            "action": action,
            "target": {"type": target[0], "id": target[1]},
            "details": dict(details or {}),
            "request_id": request_id,
            "prev_hash": bytes(head[1]).hex(),
        }
    )
    digest = hash_chain.entry_hash(body)
    cur.execute(_APPEND, (tenant_id, seq, body, digest, action, at))
    return seq


def _actor_json(actor: Actor) -> dict[str, str]:
    named = {"type": actor.type, "id": actor.id}
    return named if actor.role is None else {**named, "role": actor.role}
