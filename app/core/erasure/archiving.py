"""Archiving audit chains: a durable job for each tenant moves old bodies into segments.

A segment is written to the object store first. One transaction then stores its row, has the
database empty the bodies that it holds (`archive_audit_entries` compares them), and appends
`audit.archive` with its SHA-256 to the same chain.
"""

from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.audit import archive, chain
from app.core.blobs import rows
from app.core.blobs.reading import Vanished
from app.core.blobs.store import BlobStore, Stowed, stow
from app.core.callers import SYSTEM
from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, JobFailed, Step
from app.database import cursor
from app.errors import Unavailable
from app.lib.crypto.sealing import MasterKeys
from app.models import Job

KIND = "archive_audit"
ENTRIES = 500
"""Of a segment: fewer wait for more."""

# The number behind the last segment, and whether a whole segment behind it is old enough.
_NEXT = """
SELECT coalesce(max(last_seq), 0) + 1 FROM audit_segments WHERE tenant_id = %s
"""
_BODIES = """
SELECT body FROM audit_entries
 WHERE tenant_id = %s AND seq >= %s AND seq < %s AND at < clock_timestamp() - %s ORDER BY seq
"""
_TENANTS = """
SELECT h.tenant_id FROM audit_heads AS h
 CROSS JOIN LATERAL (SELECT coalesce(max(s.last_seq), 0) AS seq FROM audit_segments AS s
                      WHERE s.tenant_id = h.tenant_id) AS kept
  JOIN audit_entries AS e ON e.tenant_id = h.tenant_id AND e.seq = kept.seq + %s
 WHERE h.seq >= kept.seq + %s AND e.at < clock_timestamp() - %s
 ORDER BY h.tenant_id
"""
_ADD = """
INSERT INTO audit_segments (tenant_id, id, first_seq, last_seq, sha256, size, blob)
VALUES (%s, %s, %s, %s, %b, %s, %s)
"""
_EMPTY = "SELECT archive_audit_entries(%s, %s, %s, %b)"


def enqueue_due(session: Session, days: int) -> None:
    """Enqueue a job for each tenant with a segment of older entries; sees all tenants."""
    values = (ENTRIES, ENTRIES, timedelta(days=days))
    for (tenant_id,) in cursor(session).execute(_TENANTS, values).fetchall():
        job_queue.enqueue(
            session,
            tenant_id,
            kind=KIND,
            args={"days": days},
            dedupe_key="due",
            progress={"entries": 0},
        )


def step(
    store: BlobStore | None, master_keys: MasterKeys, session: Session, tenant_id: UUID, job: Job
) -> Step | Errand[Stowed]:
    """Archive a chain's next segment."""
    if store is None:
        raise JobFailed("BLOB_URL names no object store, where segments go.")
    progress = job_rows.progress_of(job)
    cur = cursor(session)
    ((first,),) = cur.execute(_NEXT, (tenant_id,)).fetchall()
    age = timedelta(days=job_rows.args_of(job)["days"])
    found = cur.execute(_BODIES, (tenant_id, first, first + ENTRIES, age), binary=True)
    bodies = [body for (body,) in found.fetchall()]
    if len(bodies) < ENTRIES or None in bodies:
        return Step(None, progress)
    content, segment_id = archive.joined(bodies), ids.new()
    place = f"{first}-{first + ENTRIES - 1}"

    def write() -> Stowed:
        (stowed,) = stow(store, [archive.item(master_keys, tenant_id, segment_id, content)])
        if stowed.bytes is not None:
            raise Unavailable("The object store (BLOB_URL) does not answer; try again later.")
        return stowed

    def record(at_end: Session, stowed: Stowed) -> Step:
        _record(at_end, (tenant_id, segment_id, first), bodies, content, stowed)
        return Step(place, {"entries": progress["entries"] + len(bodies)})

    return Errand(write, record)


def _record(
    session: Session,
    place: tuple[UUID, UUID, int],
    bodies: Sequence[bytes],
    content: bytes,
    stowed: Stowed,
) -> None:
    tenant_id, _, first = place
    last, digest = first + len(bodies) - 1, sha256(content).digest()
    cur = cursor(session)
    try:
        rows.require_fresh(session, stowed)
    except Vanished:
        raise Unavailable("The segment was written too long ago; it is written again.") from None
    cur.execute(_ADD, (*place[:2], first, last, digest, len(content), stowed.blob))
    cur.execute(_EMPTY, (tenant_id, first, last, digest))
    chain.append(
        session,
        tenant_id,
        SYSTEM,
        "audit.archive",
        target=("tenant", ids.text("ten", tenant_id)),
        details={"first_seq": first, "last_seq": last, "sha256": digest.hex()},
    )
