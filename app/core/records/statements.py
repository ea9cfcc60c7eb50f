"""Sessions that end: completed once nothing came for long, and sealed by a signed statement.

Invariant: a record is in its session's statement, or was refused. `add_records` stores nothing in
a completed session, and a completion waits for its locks: what is sealed later counts all. The row
is due until its statement is stored.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import sessions, signing_keys
from app.core.delivery import events
from app.core.findings import Severity
from app.core.sessions import Outcome, SessionStatus
from app.core.signing_keys import Purpose
from app.database import Database, Tx, cursor
from app.errors import SessionOpen, StatementPending
from app.evidence import bundle, statement
from app.ledger import leaves, merkle
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.models import AgentSession, Record, SessionStatement

PART = 8192
"""Digests in a stored part, but for the last: a power of two, so that a part is a subtree."""

MOST_SESSIONS = 200

_FIRST = UUID(int=0)

_log = structlog.get_logger(__name__)

_DUE = """
SELECT tenant_id, id FROM sessions WHERE status = 'completed' AND sealed_at IS NULL
 ORDER BY completed_at LIMIT {most}
"""
IS_DUE = f"SELECT NULL::uuid FROM ({_DUE.format(most=1)}) AS waits"
"""A query for a row if a session waits for its statement, in a session that sees all tenants."""
# The lock lets findings come, and has no two workers sign.
_TAKE = """
SELECT s.external_id, s.principal, s.created_at, s.completed_at, s.outcome,
       a.id, a.name, a.external_id, a.version
  FROM sessions AS s JOIN agents AS a ON a.tenant_id = s.tenant_id AND a.id = s.agent_id
 WHERE s.tenant_id = %s AND s.id = %s AND s.status = 'completed' AND s.sealed_at IS NULL
   FOR NO KEY UPDATE OF s SKIP LOCKED
"""
_RECORDS = """
SELECT id, bundle_sha256, created_at FROM records
 WHERE tenant_id = %s AND session_id = %s AND id > %s ORDER BY id LIMIT %s
"""
_FINDINGS = """
SELECT severity, count(*) FROM findings WHERE tenant_id = %s AND session_id = %s GROUP BY severity
"""
_STATEMENT = """
INSERT INTO session_statements
       (tenant_id, session_id, sha256, body, key_id, signature, records, root)
VALUES (%s, %s, %b, %b, %s, %b, %s, %b)
"""
_PART = """
INSERT INTO session_digests (tenant_id, session_id, number, first_id, root, digests)
VALUES (%s, %s, %s, %s, %b, %b)
"""
_LEAF = "INSERT INTO log_leaves (id, leaf_hash, data) VALUES (%s, %b, %b)"
_SEALED = "UPDATE sessions SET sealed_at = clock_timestamp() WHERE tenant_id = %s AND id = %s"
_ROOTS = """
SELECT number, first_id, root FROM session_digests
 WHERE tenant_id = %s AND session_id = %s ORDER BY number
"""
_DIGESTS = """
SELECT digests FROM session_digests WHERE tenant_id = %s AND session_id = %s AND number = %s
"""


def seal_due(database: Database, master_keys: MasterKeys, until: float) -> bool:
    """Seal completed sessions until `until` (monotonic); say whether more are due.

    Each in a transaction of its own; one that cannot be sealed now is logged, and holds up no
    other.
    """
    with database.across_tenants() as session:
        due = cursor(session).execute(_DUE.format(most=MOST_SESSIONS).encode()).fetchall()
    sealed = 0
    for tenant_id, session_id in due:
        if time.monotonic() > until:
            return True
        try:
            with database.transaction(tenant_id) as session:
                sealed += seal(session, master_keys, tenant_id, session_id)
        except CannotOpen as error:
            named = ids.text("ses", session_id)
            _log.error("session_not_sealed", session=named, reason=str(error))
    return len(due) == MOST_SESSIONS and sealed > 0


def seal(session: Session, master_keys: MasterKeys, tenant_id: UUID, session_id: UUID) -> bool:
    """Sign and store a completed session's statement; False if it has one, or is being sealed.

    Raises `CannotOpen` where MASTER_KEYS do not open the signing key.
    """
    cur = cursor(session)
    named = (tenant_id, session_id)
    row = cur.execute(_TAKE, named).fetchone()
    if row is None:
        return False
    external_id, principal, opened_at, completed_at, outcome, agent_id, *of_agent = row
    facts = statement.Session(
        id=ids.text("ses", session_id),
        agent=bundle.agent(ids.text("agt", agent_id), *of_agent),
        principal=principal,
        opened_at=rfc3339(opened_at),
        completed_at=rfc3339(completed_at),
        outcome=outcome,
    )
    if external_id is not None:
        facts["external_id"] = external_id
    key = signing_keys.current(session, master_keys, Purpose.BUNDLE)
    parts, roots, count, times = [], b"", 0, None
    for number, rows in enumerate(_parts(session, tenant_id, session_id)):
        digests = [bytes(digest) for _, digest, _ in rows]
        root = merkle.root(map(merkle.leaf_hash, digests))
        times = (times[0] if times else rfc3339(rows[0][2]), rfc3339(rows[-1][2]))
        parts.append((*named, number, rows[0][0], root, b"".join(digests)))
        roots, count = roots + root, count + len(rows)
    root = merkle.fold(roots) or merkle.EMPTY_ROOT
    found = dict.fromkeys(map(str, Severity), 0) | dict(cur.execute(_FINDINGS, named).fetchall())
    raw = statement.write(
        facts, records=count, root=root, times=times, findings=found, key_id=key.public.id
    )
    digest = sha256(raw).digest()
    leaf = leaves.session(digest)
    values = (*named, digest, raw, key.public.id, key.sign(raw), count, root)
    cur.execute(_STATEMENT, values)
    cur.executemany(_PART, parts)
    cur.execute(_LEAF, (ids.new(), merkle.leaf_hash(leaf), leaf))
    cur.execute(_SEALED, named)
    return True


def _parts(
    session: Session, tenant_id: UUID, session_id: UUID
) -> Iterator[list[tuple[UUID, bytes, datetime]]]:
    """Yield a session's records in order of creation, `PART` at a time."""
    after = _FIRST
    while True:
        wanted = (tenant_id, session_id, after, PART)
        rows = cursor(session).execute(_RECORDS, wanted, binary=True).fetchall()
        if rows:
            yield rows
        if len(rows) < PART:
            return
        after = rows[-1][0]


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
    return merkle.leaf_hash(leaves.session(stored.sha256))


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


PIECE = 500
"""How many sessions one transaction looks at."""

# Records lock their session, so whoever stores one is finished, or waits and finds it completed.
_QUIET = """
SELECT tenant_id, id FROM sessions
 WHERE status = 'open' AND active_at < (SELECT clock_timestamp() - %s)
 ORDER BY active_at LIMIT %s FOR UPDATE SKIP LOCKED
"""
# A statement of its own: it sees what was committed before the locks were there.
_LAST = """
SELECT s.tenant_id, s.id, clock_timestamp(), greatest(
           s.active_at,
           (SELECT created_at FROM records AS r
             WHERE r.tenant_id = s.tenant_id AND r.session_id = s.id ORDER BY r.id DESC LIMIT 1),
           (SELECT created_at FROM findings AS f
             WHERE f.tenant_id = s.tenant_id AND f.session_id = s.id ORDER BY f.id DESC LIMIT 1))
  FROM unnest(%b::uuid[], %b::uuid[]) AS quiet (tenant_id, id)
  JOIN sessions AS s USING (tenant_id, id)
"""
_PUT_OFF = """
UPDATE sessions AS s SET active_at = seen.at
  FROM unnest(%b::uuid[], %b::uuid[], %b::timestamptz[]) AS seen (tenant_id, id, at)
 WHERE s.tenant_id = seen.tenant_id AND s.id = seen.id
"""
_ABANDON = """
UPDATE sessions SET status = 'completed', outcome = %s, summary = %s, completed_at = %s
 WHERE tenant_id = %s AND id = ANY (%b) AND status = 'open'
"""


def complete_idle(session: Session, idle: timedelta) -> bool:
    """Complete up to `PIECE` sessions that nothing came to for `idle`; say whether more are due.

    Emits `session.completed` for each, once: whoever looks at a session holds its lock. `session`
    sees every tenant.
    """
    cur = cursor(session)
    quiet = cur.execute(_QUIET, (idle, PIECE)).fetchall()
    if not quiet:
        return False
    looked_at = cur.execute(_LAST, tuple(map(list, zip(*quiet, strict=True)))).fetchall()
    ended: defaultdict[UUID, list[UUID]] = defaultdict(list)
    put_off: list[tuple[UUID, UUID, datetime]] = []
    for tenant_id, session_id, now, active_at in looked_at:
        if active_at < now - idle:
            ended[tenant_id].append(session_id)
        else:
            put_off.append((tenant_id, session_id, active_at))
    if put_off:
        cur.execute(_PUT_OFF, tuple(map(list, zip(*put_off, strict=True))))
    at, summary = looked_at[0][2], f"Nothing came to it for {idle.total_seconds():g} seconds."
    for tenant_id, session_ids in ended.items():
        cur.execute(_ABANDON, (Outcome.ABANDONED, summary, at, tenant_id, session_ids))
        found = [
            events.NewEvent("session.completed", sessions.represent(row), at, row.id)
            for row in sessions.of(session, tenant_id, session_ids)
        ]
        events.emit(session, tenant_id, found)
    return len(quiet) == PIECE
