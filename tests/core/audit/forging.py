"""Changes that the database's owner makes to a chain: by SQL, or written anew with its anchors."""

from collections.abc import Callable

from app.ledger import leaves, merkle
from tests.support.evidence.chains import Owner, Place

Attack = Callable[[Place, Owner], object]


def sql(*statements: str) -> Attack:
    return lambda _, owner: owner(*statements)


ENTRIES = "audit_entries WHERE tenant_id = :tenant"
ANCHORS = "audit_anchors WHERE tenant_id = :tenant"


def forge_with_anchors(_: Place, owner: Owner) -> None:
    """Write chain and anchors anew, hashes and all."""
    owner.forge_tail(4, 12)
    owner(
        "UPDATE audit_anchors AS a SET hash = e.hash FROM audit_entries AS e"
        " WHERE a.tenant_id = :tenant AND e.tenant_id = a.tenant_id AND e.seq = a.seq"
    )


def forge_anchors_and_leaves(_: Place, owner: Owner) -> None:
    """Write everything anew that a table has: chain, anchors, and the anchors' leaves."""
    owner.forge_tail(4, 12)
    salt = owner.scalar("SELECT chain_salt FROM tenants WHERE id = :tenant")
    for seq in (5, 9):
        digest = owner.scalar(f"SELECT hash FROM {ENTRIES} AND seq = :seq", seq=seq)
        at = "2026-01-31T12:00:00.123456Z"
        data = leaves.AuditHead(leaves.chain_name(salt), seq, digest, at).data
        owner(
            "UPDATE log_leaves SET data = :data, leaf_hash = :new WHERE leaf_hash ="
            f" (SELECT leaf_hash FROM {ANCHORS} AND seq = :seq)",
            f"UPDATE {ANCHORS.replace(' WHERE', ' SET hash = :hash, leaf_hash = :new WHERE')}"
            " AND seq = :seq",
            data=data,
            new=merkle.leaf_hash(data),
            hash=digest,
            seq=seq,
        )
