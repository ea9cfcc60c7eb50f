"""The archive of an audit chain: bodies of old entries, as segments in the object store.

An entry keeps its hash, its link and the copies to filter by; its body lies in the segment that has
its number. A segment's SHA-256 is in its row and in the chain (`audit.archive`). What is missing or
was altered is a broken chain, at the segment's first entry.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from app.core.audit import view
from app.core.blobs import reading
from app.core.blobs.reading import Row
from app.core.blobs.store import Item
from app.database import Tx, cursor
from app.lib.crypto.sealing import CannotOpen, KeyMissing, MasterKeys
from app.models import AuditEntry

KIND = "audit_segments"
_HOLDING = """
SELECT id, first_seq, last_seq, sha256, bytes, blob FROM audit_segments
 WHERE tenant_id = %s AND last_seq >= %s AND first_seq <= %s ORDER BY first_seq
"""


class Segment(NamedTuple):
    """The bodies of the entries from one number to another, by their row."""

    id: UUID
    first: int
    last: int
    sha256: bytes
    bytes: bytes | None
    blob: UUID | None


def identity(tenant_id: UUID, segment_id: UUID) -> str:
    """Name the place of a segment, for which it is sealed."""
    return f"{KIND}/{tenant_id}/{segment_id}"


def joined(bodies: Sequence[bytes]) -> bytes:
    """Return the content of a segment: canonical JSON has no newline in it."""
    return b"".join(body + b"\n" for body in bodies)


def item(master_keys: MasterKeys, tenant_id: UUID, segment_id: UUID, content: bytes) -> Item:
    """Return a segment, sealed, to be stored."""
    sealed = master_keys.seal(content, identity(tenant_id, segment_id))
    return Item(KIND, tenant_id, segment_id, 0, sealed)


def segments(tx: Tx, tenant_id: UUID, first: int, last: int) -> list[Segment]:
    """Return the segments that hold any of these entries, in their order."""
    values = (tenant_id, first, last)
    return [Segment(*row) for row in cursor(tx).execute(_HOLDING, values, binary=True).fetchall()]


def bodies(master_keys: MasterKeys, tenant_id: UUID, segment: Segment) -> Mapping[int, bytes]:
    """Return the bodies of a segment by number.

    Raises `AuditChainBroken`, `KeyMissing`, `reading.Lacking` and `Unavailable`.
    """
    row = Row(segment.id, 0, segment.bytes, segment.blob)
    where = f"the archived entries {segment.first} to {segment.last}"
    try:
        named = identity(tenant_id, segment.id)
        content = reading.opened(master_keys, KIND, tenant_id, row, named)
    except KeyMissing:
        raise
    except CannotOpen as error:
        raise view.broken(segment.first, "segment", where, str(error)) from None
    digest = sha256(content).digest()
    if digest != segment.sha256:
        found = f"bytes with the SHA-256 {digest.hex()}"
        raise view.broken(segment.first, "segment", where, found)
    return dict(enumerate(content.splitlines(), segment.first))


def filled(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, entries: Sequence[AuditEntry]
) -> Sequence[AuditEntry]:
    """Give archived entries their bodies, unsaved. Raises as `bodies`."""
    archived = [each for each in entries if each.body is None]
    if not archived:
        return entries
    numbers = [each.seq for each in archived]
    found = segments(session, tenant_id, min(numbers), max(numbers))
    wanted = [each for each in found if any(each.first <= seq <= each.last for seq in numbers)]
    # All at once, so that each is fetched in the same round.
    reading.sealed(KIND, tenant_id, [Row(each.id, 0, each.bytes, each.blob) for each in wanted])
    held: dict[int, bytes] = {}
    for segment in wanted:
        held.update(bodies(master_keys, tenant_id, segment))
    for entry in archived:
        if entry.seq not in held:
            raise view.broken(entry.seq, "missing", f"a segment with entry {entry.seq}", "none")
        set_committed_value(entry, "body", held[entry.seq])
    return entries


def walked(
    tx: Tx, master_keys: MasterKeys, tenant_id: UUID, first: int, last: int
) -> Iterator[tuple[Segment, Mapping[int, bytes]]]:
    """Yield the segments of a stretch with their bodies, each read when it is asked for.

    They are read on the spot: recomputing a chain waits for the store in its snapshot.
    """
    for segment in segments(tx, tenant_id, first, last):
        with reading.on_the_spot():
            found = bodies(master_keys, tenant_id, segment)
        yield segment, found
