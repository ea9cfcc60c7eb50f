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
from app.errors import AuditChainBroken
from app.ledger import hash_chain
from app.ledger.hash_chain import START, Break, Head, Reason
from app.lib.crypto.sealing import MasterKeys
from app.models import AuditHead

PART = 1000
# The daily run's, in a snapshot: some seconds.
ENTRIES_AT_ONCE = 500_000
# A request's body is a tenth of that; a longer one must not fill the memory.
_LONGEST = 10 * 1024 * 1024
_RFC3339 = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'

# The columns after `hash` are copies for filters, and a forged one hides an entry from a filtered
# list. In a canonical body each stands at its place: the server compares that while the rows before
# are hashed here. What `to_json` writes of a text is its canonical JSON.
_COPIES = "concat_ws(', ', left(action, 200), left(actor, 200), left(target, 200), outcome, at)"
_ENTRIES = f"""
SELECT seq, CASE WHEN octet_length(body) <= {_LONGEST} THEN body ELSE '' END,
       CASE WHEN substr(body, 1, octet_length(begin)) = begin AND position(middle IN body) > 0
             AND position(result IN body) > 0 AND position(subject IN body) > 0
            THEN substr(hash, 1, 33) ELSE '' END,
       CASE WHEN body IS NULL THEN ARRAY[begin, middle, subject, result, substr(hash, 1, 33)] END
  FROM audit_entries
 CROSS JOIN LATERAL (
       SELECT to_json(left(action, 200))::text AS action, to_json(left(actor, 200))::text AS actor,
              to_json(left(target, 200))::text AS target,
              to_char(at AT TIME ZONE 'UTC', '{_RFC3339}') AS at) AS c
 CROSS JOIN LATERAL (
       SELECT convert_to('{{"action":' || c.action || ',"actor":{{"id":' || c.actor || ',', 'UTF8')
                  AS begin,
              convert_to('"at":"' || c.at || '","details":', 'UTF8') AS middle,
              convert_to(',"target":{{"id":' || c.target || ',"type":', 'UTF8') AS subject,
              convert_to(coalesce(',"outcome":' || to_json(outcome), '}}') || ',"prev_hash":"',
                         'UTF8') AS result) AS d
 WHERE tenant_id = %s AND seq > %s AND seq <= %s ORDER BY seq
"""
_FILED = f"""
SELECT CASE WHEN octet_length(body) <= {_LONGEST} THEN body ELSE '' END, hash,
       {_COPIES} || ' beside it'
  FROM audit_entries WHERE tenant_id = %s AND seq = %s
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
    *,
    is_part: bool = False,
) -> None:
    """Recompute what is behind `after`, through to `last`; nothing may follow it but in a part.

    Raises `AuditChainBroken` for the first bad entry. Nothing else may be asked of this session
    meanwhile.
    """
    # No entry has a number below 1, but a row may.
    begin = after.seq or -(2**63)
    cur = cursor(session)
    # A break leaves rows that are not needed. Not to receive them the statement is cancelled,
    # which the transaction survives only by going back to here.
    cur.execute("SAVEPOINT chain")
    through = last.seq if is_part else 2**63 - 1
    rows = _rows(session, master_keys, tenant_id, begin, through)
    with closing(rows):
        broken = hash_chain.verify(
            rows, tenant_id=ids.text("ten", tenant_id), after=after, end=last
        )
    cur.execute("ROLLBACK TO SAVEPOINT chain")
    if broken is not None:
        raise _named(session, tenant_id, broken)


def _rows(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, after: int, through: int
) -> Generator[tuple[int, bytes, bytes]]:
    """Yield the entries of a stretch as they are verified, archived ones from their segments."""
    cur, query = cursor(session), _ENTRIES.encode()
    archived = archive.walked(session, master_keys, tenant_id, after + 1, through)
    for segment, bodies in archived:
        ends = min(segment.last, through)
        rows = cur.execute(query, (tenant_id, after, ends), binary=True).fetchall()
        for seq, body, stored, beside in rows:
            if beside is None:
                yield seq, body, stored
                continue
            # Held against the copies beside it, as the query does for a body that is there.
            filed, (begin, *others, digest) = bodies.get(seq, b""), beside
            is_good = filed.startswith(begin) and all(each in filed for each in others)
            yield seq, filed, digest if is_good else b""
        after = ends
    rest = cur.stream(query, (tenant_id, after, through), binary=True, size=PART)
    with closing(cast("Generator[Any]", rest)):
        for seq, body, stored, beside in rest:
            # An empty body that no segment holds: its hash is not that of nothing.
            yield seq, body, stored if beside is None else beside[-1]


def part_end(session: Session, tenant_id: UUID, after: Head, last: Head) -> Head:
    """Return the head at which a part of the chain may end that begins behind `after`.

    Where its entry is missing it is `last`: then the rest is one part, which finds that.
    """
    seq = after.seq + ENTRIES_AT_ONCE
    if seq >= last.seq:
        return last
    row = cursor(session).execute(_ANY, (tenant_id, seq)).fetchone()
    return last if row is None else Head(seq, row[0].hex())


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


def _named(session: Session, tenant_id: UUID, found: Break) -> AuditChainBroken:
    """Return the error for a break; a hash that the query left out is read now."""
    if found.reason is Reason.BAD_HASH:
        row = cursor(session).execute(_FILED.encode(), (tenant_id, found.seq)).fetchone()
        body, stored, filed = row or (b"", b"", "")
        if hash_chain.entry_hash(body) == stored:
            expected = "action, actor, target, outcome and time as its body has them"
            return view.broken(found.seq, "misfiled", expected, filed)
        return view.broken(found.seq, found.reason, stored[:33].hex(), found.found)
    return view.broken(found.seq, found.reason, found.expected, found.found)
