"""Incremental verification: from the newest anchor on.

A Merkle path to the signed root proves the anchor. The log's newest leaves, up to a limit, are
proven by the same root: a chain truncated to an older anchor has a later head there.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.audit import view
from app.core.log import proofs
from app.core.log.publication import Published
from app.core.verification.checks import stored_chain
from app.core.verification.checks.anchored_heads import Found, Leaves
from app.core.verification.checks.log_walk import Walk
from app.core.verification.time_budget import Deadline
from app.database import cursor
from app.errors import LogDamaged
from app.ledger import leaves, merkle
from app.ledger.hash_chain import Head
from app.ledger.tiles import WIDTH

LOOK_BACK = 64 * WIDTH

_NEWEST = """
SELECT a.seq, a.hash, a.leaf_hash, l.leaf_index, l.data FROM audit_anchors AS a
  JOIN log_leaves AS l ON l.leaf_hash = a.leaf_hash
 WHERE a.tenant_id = %s AND l.generation = %s AND l.leaf_index < %s
 ORDER BY a.seq DESC LIMIT 1
"""


@dataclass(frozen=True)
class Start:
    """The anchor that a verification began from, and the first leaf that was read behind it."""

    head: Head
    index: int
    read_from: int


def check(
    session: Session, tenant_id: UUID, name: bytes, last: Published, end: Head, deadline: Deadline
) -> tuple[Start, Found] | None:
    """Verify what came after the newest anchor that the log proves; None without any.

    `name` is the chain's in the log. Raises as a whole verification does.
    """
    size = last.checkpoint.size
    values = (tenant_id, last.generation.number, size)
    row = cursor(session).execute(_NEWEST, values, binary=True).fetchone()
    if row is None:
        return None
    seq, digest, leaf_hash, index, data = row
    anchored = leaves.audit_head(data)
    proven = proofs.inclusion(session, last, index, size).leaf_hash == leaf_hash
    if (
        not proven
        or merkle.leaf_hash(data) != leaf_hash
        or anchored is None
        or (anchored.chain, anchored.seq, anchored.hash) != (name, seq, digest)
    ):
        raise view.broken(seq, "anchor_not_in_log", "its leaf in the log", f"another at {index}")
    read_from = max(index + 1, size - LOOK_BACK) // WIDTH * WIDTH
    deadline.expect(end.seq - seq, size - read_from)
    seen = _later(session, name, last, read_from, deadline)
    found = seen.by_tenant.setdefault(tenant_id, Found())
    if found.broken is not None:
        raise found.broken
    if found.through is None or found.through < seq:
        found.count(seq, index)
    head = Head(seq, digest.hex())
    stored_chain.hold(session, tenant_id, end, head)
    stored_chain.check(session, tenant_id, end, deadline, after=head)
    return Start(head, index, read_from), found


def _later(
    session: Session, name: bytes, last: Published, read_from: int, deadline: Deadline
) -> Leaves:
    size = last.checkpoint.size
    seen = Leaves(session, last.generation, newest=True, chain=name)
    reading = Walk(session, last.generation, size)
    reading.begin_at(read_from)
    for first, bundle, data in reading.bundles(deadline):
        seen.take(first, bundle, data)
    seen.settle()
    if reading.roots[size] != last.checkpoint.root:
        raise LogDamaged(f"The leaves from {read_from} on give another root than was signed.")
    return seen
