"""Recomputes one tenant's chain in constant memory: every hash, every link, its end.

Rows are streamed.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Any, cast
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.anchoring import anchors
from app.core.anchoring.anchors import AnchoringState
from app.core.audit import archive, view
from app.database import cursor
from app.ledger import hash_chain
from app.ledger.hash_chain import START, Copies, Head
from app.lib.crypto.sealing import MasterKeys
from app.models import AuditHead

PART = 1000
# A request's body is a tenth of that; a longer one must not fill the memory.
_LONGEST = 10 * 1024 * 1024
_RFC3339 = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'

# The columns after `hash` are copies for filters: a forged one hides an entry from a filtered list.
_ENTRIES = f"""
SELECT seq, CASE WHEN octet_length(body) > {_LONGEST} THEN '' ELSE body END, substr(hash, 1, 33),
       left(action, 200), left(actor, 200), left(target, 200), outcome,
       to_char(at AT TIME ZONE 'UTC', '{_RFC3339}')
  FROM audit_entries WHERE tenant_id = %s AND seq > %s AND seq <= %s ORDER BY seq
"""
_ANY = "SELECT hash FROM audit_entries WHERE tenant_id = %s AND seq = %s"


def end(session: Session, tenant_id: UUID) -> Head:
    """Return the head that the chain has. Raises `AuditChainBroken` without one."""
    found = session.get(AuditHead, tenant_id)
    if found is None:
        raise view.broken(1, "missing", "a row in audit_heads", "none")
    return Head(found.seq, found.hash.hex())


def check(
    session: Session,
    master_keys: MasterKeys,
    tenant_id: UUID,
    last: Head,
    after: Head = START,
) -> None:
    """Recompute what is behind `after`, through to `last`; nothing may follow it.

    Raises `AuditChainBroken` for the first bad entry. Nothing else may be asked of this session
    meanwhile.
    """
    # No entry has a number below 1, but a row may.
    begin = after.seq or -(2**63)
    cur = cursor(session)
    # A break leaves rows that are not needed. Not to receive them the statement is cancelled,
    # which the transaction survives only by going back to here.
    cur.execute("SAVEPOINT chain")
    rows = _rows(session, master_keys, tenant_id, begin)
    with closing(rows):
        broken = hash_chain.verify(
            rows, tenant_id=ids.text("ten", tenant_id), after=after, end=last
        )
    cur.execute("ROLLBACK TO SAVEPOINT chain")
    if broken is not None:
        raise view.broken(broken.seq, broken.reason, broken.expected, broken.found)


def _rows(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, after: int
) -> Generator[tuple[int, bytes, bytes, Copies]]:
    """Yield the entries behind `after` as they are verified, archived ones from their segments."""
    cur, query, end = cursor(session), _ENTRIES.encode(), 2**63 - 1
    for segment, bodies in archive.walked(session, master_keys, tenant_id, after + 1, end):
        rows = cur.execute(query, (tenant_id, after, segment.last), binary=True).fetchall()
        for seq, body, stored, *beside in rows:
            yield seq, bodies.get(seq, b"") if body is None else body, stored, tuple(beside)
        after = segment.last
    rest = cur.stream(query, (tenant_id, after, end), binary=True, size=PART)
    with closing(cast("Generator[Any]", rest)):
        for seq, body, stored, *beside in rest:
            # An empty body that no segment holds: its hash is not that of nothing.
            yield seq, body or b"", stored, tuple(beside)


def hold(session: Session, tenant_id: UUID, last: Head, kept: Head) -> None:
    """Hold a chain that was found good up to `last` against a kept head.

    Raises `AuditChainBroken`.
    """
    row = cursor(session).execute(_ANY, (tenant_id, kept.seq)).fetchone()
    if row is None:
        place = min(kept.seq, last.seq + 1)
        raise view.broken(place, "missing", f"entry {kept.seq}", f"the end at {last.seq}")
    if row[0].hex() != kept.hash:
        raise view.broken(kept.seq, "other_head", kept.hash, row[0].hex())


def check_setting(session: Session, tenant_id: UUID) -> AnchoringState:
    """Return whether a chain, found good, is anchored, as it and the tenant's row say.

    The database's owner could disable anchoring in `tenants` to hide later changes. Raises
    `AuditChainBroken` at the last entry that says otherwise.
    """
    now = anchors.state_of(session, tenant_id)
    if now.enabled != now.enabled_in_chain:
        stated = f"anchoring_enabled {str(now.enabled_in_chain).lower()}, as the chain says"
        found = f"{str(now.enabled).lower()} in tenants"
        raise view.broken(now.changed_by, "other_setting", stated, found)
    return now
