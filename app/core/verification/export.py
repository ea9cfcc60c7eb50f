"""Exports a whole audit chain as a stream.

The chain only grows, so all entries up to one head are a snapshot. The head is read once, the
entries in parts, each in a short transaction: a slow reader holds no connection.
"""

from collections.abc import Sequence
from uuid import UUID

from cryptography.x509 import Certificate
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.anchoring import anchors
from app.core.anchoring.anchors import AnchorReader
from app.core.audit import chain, view
from app.core.callers import Caller
from app.ledger.hash_chain import Head
from app.ledger.policy import Policy
from app.lib import canonical_json
from app.lib.crypto.sealing import MasterKeys
from app.models import AuditEntry

PART = 500
MOST_ANCHORS = 100


def begin(session: Session, caller: Caller) -> Head:
    """Append `audit.export` and return the head where the export ends: that entry itself."""
    target = ("tenant", ids.text("ten", caller.tenant_id))
    return chain.append_by(session, caller, "audit.export", target=target)


def part(session: Session, caller: Caller, after: int, end: Head) -> Sequence[AuditEntry]:
    """Return up to `PART` entries behind the number `after`, oldest first, none beyond `end`.

    Raises `AuditChainBroken` when one of them is missing.
    """
    entries = session.scalars(
        select(AuditEntry)
        .where(
            AuditEntry.tenant_id == caller.tenant_id,
            AuditEntry.seq > after,
            AuditEntry.seq <= min(after + PART, end.seq),
        )
        .order_by(AuditEntry.seq)
    ).all()
    wanted = range(after + 1, min(after + PART, end.seq) + 1)
    for seq, entry in zip(wanted, [*entries, None], strict=False):
        if entry is None or entry.seq != seq:
            raise view.broken(seq, "missing", f"entry {seq}", "none")
    return entries


def line(entry: AuditEntry) -> bytes:
    """Return an entry's line of NDJSON: its canonical JSON, `hash` included.

    Raises `AuditChainBroken` when the stored bytes are no JSON object.
    """
    return canonical_json.dumps(view.represent(entry)) + b"\n"


def trailer(
    session: Session,
    tenant_id: UUID,
    end: Head,
    policy: Policy | None,
    master_keys: MasterKeys,
    trusted: Sequence[Certificate],
) -> bytes:
    """Return the last line of an export, without which it is incomplete.

    It holds the newest anchors of the entries before it, each with its proof. Needs a snapshot.
    """
    reader = AnchorReader(session, tenant_id, policy, master_keys, trusted)
    newest = reader.rows(end.seq + 1, MOST_ANCHORS)
    members = {
        "type": "trailer",
        "entries": end.seq,
        "head": view.head_json(end),
        "anchors": [reader.represent(each) for each in newest],
        "anchors_total": anchors.count(session, tenant_id, end.seq),
    }
    return canonical_json.dumps(members) + b"\n"
