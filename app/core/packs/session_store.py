"""The storage port of sessions' packs, in parts: bytes, or the records whose bundles they are.

A part of bundles is read from the bundles themselves. So what has expired is in no pack, and a pack
takes little room.
"""

from collections.abc import Mapping
from hashlib import sha256
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.blobs import store, writing
from app.core.blobs.reading import Row, opened
from app.core.blobs.writing import Item, Stowed
from app.core.packs.store import PART_BYTES, SessionPack, Source, Vanished
from app.core.records import bundles
from app.database import cursor
from app.evidence.pack import Archive
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.models import SessionStatement
from app.settings import Settings

KIND = "session_pack_parts"

_FIND = """
SELECT id, sha256, size, generation, checkpoint_size, evidence_rank, key_id, recipe, further
  FROM evidence_packs
 WHERE tenant_id = %s AND session_id = %s AND built_at IS NOT NULL AND superseded_at IS NULL
"""
_BEGIN = """
INSERT INTO evidence_packs (tenant_id, id, session_id, generation, checkpoint_size, evidence_rank,
                            key_id, recipe, further, size)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_PART = """
INSERT INTO session_pack_parts (tenant_id, pack_id, starts, bytes, blob, record_ids)
VALUES (%s, %s, %s, %b, %b, %b)
"""
_SUPERSEDE = """
UPDATE evidence_packs SET superseded_at = clock_timestamp()
 WHERE tenant_id = %s AND session_id = %s AND built_at IS NOT NULL AND superseded_at IS NULL
"""
_FINISH = """
UPDATE evidence_packs SET sha256 = %s, built_at = clock_timestamp()
 WHERE tenant_id = %s AND id = %s
"""
_READ = """
SELECT starts, bytes, blob, record_ids FROM session_pack_parts
 WHERE tenant_id = %s AND pack_id = %s AND starts <= %s ORDER BY starts DESC LIMIT 1
"""


class Lines(bytes):
    """Lines of bundles, and of which: they are stored already."""

    record_ids: list[UUID]


def find(session: Session, stored: SessionStatement) -> SessionPack | None:
    """Return the pack of a session that is given out; None before the first is built."""
    named = (stored.tenant_id, stored.session_id)
    row = cursor(session).execute(_FIND, named).fetchone()
    if row is None:
        return None
    pack_id, digest, size, *source = row
    return SessionPack(*named, pack_id, bytes(digest), size, Source(*source))


def read_part(
    session: Session, master_keys: MasterKeys, stored: SessionPack, at: int
) -> tuple[int, bytes]:
    """Return where the part begins that has byte `at` of the pack, and its bytes.

    Raises `Vanished` when the pack, or a bundle in it, is gone; `CannotOpen` when a bundle was
    changed, and `KeyMissing`.
    """
    wanted = (stored.tenant_id, stored.id, at)
    row = cursor(session).execute(_READ, wanted, binary=True).fetchone()
    if row is None:
        raise Vanished
    starts, content, blob, record_ids = row
    if record_ids is None:
        part = Row(stored.id, starts, content, blob)
        named = identity(stored.tenant_id, stored.id, starts)
        return starts, opened(master_keys, KIND, stored.tenant_id, part, named)
    found = bundles.read_many(session, master_keys, stored.tenant_id, record_ids)
    if found.damaged:
        raise CannotOpen("a bundle in it was changed")
    if len(found.contents) < len(record_ids):
        raise Vanished
    return starts, lines(found.contents, record_ids)


def identity(tenant_id: UUID, pack_id: UUID, starts: int) -> str:
    """Name the place of a part, for which it is sealed."""
    return f"{KIND}/{tenant_id}/{pack_id}/{starts}"


def lines(found: Mapping[UUID, bytes], record_ids: list[UUID]) -> bytes:
    """Return the lines of these records' bundles, in this order."""
    return b"".join(found[each] + b"\n" for each in record_ids)


def replace(
    session: Session,
    settings: Settings,
    stored: SessionStatement,
    source: Source,
    archive: Archive,
) -> None:
    """Store a pack in parts, in place of the one before: a job carries them to the object store."""
    blobs, master_keys = store.of(settings.blob_url), settings.master_keys
    cur = cursor(session)
    pack_id = ids.new()
    named = (stored.tenant_id, stored.session_id)
    cur.execute(_BEGIN, (stored.tenant_id, pack_id, stored.session_id, *source, archive.size))
    digest, starts, waiting = sha256(), 0, bytearray()

    def put(content: bytes | None, record_ids: list[UUID] | None, size: int) -> int:
        kept = Stowed(None)
        if content is not None:
            sealed = master_keys.seal(content, identity(stored.tenant_id, pack_id, starts))
            kept = writing.waiting(blobs, Item(KIND, stored.tenant_id, pack_id, starts, sealed))
        cur.execute(_PART, (stored.tenant_id, pack_id, starts, *kept, record_ids))
        return starts + size

    for chunk in archive:
        digest.update(chunk)
        is_lines = isinstance(chunk, Lines)
        if waiting and (is_lines or len(waiting) >= PART_BYTES):
            starts = put(bytes(waiting), None, len(waiting))
            waiting.clear()
        if isinstance(chunk, Lines):
            starts = put(None, chunk.record_ids, len(chunk))
        else:
            waiting += chunk
    put(bytes(waiting), None, len(waiting))
    cur.execute(_SUPERSEDE, named)
    cur.execute(_FINISH, (digest.digest(), stored.tenant_id, pack_id))
