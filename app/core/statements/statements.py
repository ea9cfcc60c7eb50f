"""Statements of sealed sessions, their digests, and the place of a record among them."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.sessions import SessionStatus
from app.core.statements.sealing import PART
from app.database import Tx, cursor
from app.errors import SessionOpen, StatementPending
from app.ledger import leaves, merkle
from app.models import AgentSession, Record, SessionStatement

_ROOTS = """
SELECT number, first_id, root FROM session_digests
 WHERE tenant_id = %s AND session_id = %s ORDER BY number
"""
_DIGESTS = """
SELECT digests FROM session_digests WHERE tenant_id = %s AND session_id = %s AND number = %s
"""


@dataclass(frozen=True)
class Place:
    """A record's place among the `size` records of its sealed session, with its path to the root.

    `index` counts from 0, in order of creation.
    """

    statement: SessionStatement
    index: int
    size: int
    path: list[bytes]


def find(session: Session, tenant_id: UUID, session_id: UUID) -> SessionStatement | None:
    """Return the statement of a session, None before it is sealed."""
    return session.get(SessionStatement, (tenant_id, session_id))


def of(session: Session, found: AgentSession) -> SessionStatement:
    """Return the statement of a session. Raises `SessionOpen`, or `StatementPending`."""
    if found.status == SessionStatus.OPEN:
        raise SessionOpen("This session is open; its statement is signed when it is completed.")
    stored = find(session, found.tenant_id, found.id)
    if stored is None:
        raise StatementPending("This session is completed, and its statement is being signed.")
    return stored


def leaf_hash(stored: SessionStatement) -> bytes:
    """Return the hash of a statement's leaf in the log."""
    return merkle.leaf_hash(leaves.SessionStatement(stored.sha256).data)


def place_of(session: Session, record: Record) -> Place | None:
    """Return a record's place in its sealed session.

    None before the session is sealed, and for a record that its statement does not have: such a
    record was put there past the service.
    """
    stored = find(session, record.tenant_id, record.session_id)
    if stored is None:
        return None
    named = (record.tenant_id, record.session_id)
    rows = cursor(session).execute(_ROOTS, named, binary=True).fetchall()
    parts = [number for number, first_id, _ in rows if first_id <= record.id]
    if not parts:
        return None
    ((digests,),) = cursor(session).execute(_DIGESTS, (*named, parts[-1]), binary=True).fetchall()
    within = next(
        (at for at in range(0, len(digests), 32) if digests[at : at + 32] == record.bundle_sha256),
        None,
    )
    if within is None:
        return None
    hashes = [merkle.leaf_hash(digests[at : at + 32]) for at in range(0, len(digests), 32)]
    path = merkle.path_within(b"".join(hashes), within // 32)
    path += merkle.path_within(b"".join(root for *_, root in rows), parts[-1])
    first = parts[-1] * PART
    return Place(stored, first + within // 32, stored.records, path)


def first_ids(tx: Tx, stored: SessionStatement) -> list[UUID]:
    """Return the first record of each part of the digests."""
    named = (stored.tenant_id, stored.session_id)
    return [row[1] for row in cursor(tx).execute(_ROOTS, named, binary=True).fetchall()]


def digests(tx: Tx, stored: SessionStatement) -> Iterator[bytes]:
    """Yield the sealed digests, joined, a part at a time."""
    named = (stored.tenant_id, stored.session_id)
    for number, *_ in cursor(tx).execute(_ROOTS, named, binary=True).fetchall():
        ((part,),) = cursor(tx).execute(_DIGESTS, (*named, number), binary=True).fetchall()
        yield part
