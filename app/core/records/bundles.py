"""The storage port of bundles, in PostgreSQL or in the object store, and what tenants have stored.

Bytes are sealed for their row, so dumps, dead rows, the write-ahead log, backups and whoever keeps
objects do not reveal content. Triggers count each tenant's records and bytes, in several rows, so
that concurrent records do not wait for one; `add_records` reads them without a lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.blobs.reading import Row, opened
from app.core.blobs.reading import sealed as stored
from app.core.blobs.store import Item
from app.core.records import records, retention
from app.core.records.signing import Signed
from app.database import Tx, carried, cursor
from app.errors import BundleExpired
from app.lib.crypto.sealing import CannotOpen, KeyMissing, MasterKeys
from app.models import Record

KIND = "bundles"
_KEPT = f"""
  FROM bundles AS b
  JOIN records AS r ON r.tenant_id = b.tenant_id AND r.id = b.record_id
  JOIN tenants AS t ON t.id = b.tenant_id
 WHERE {retention.READABLE} AND b.tenant_id = %s AND b.record_id
"""
KEPT = _KEPT + "= %s "
_DELETE = "DELETE FROM bundles WHERE tenant_id = %s AND record_id = ANY (%b)"
_READ = "SELECT b.record_id, 0, b.bytes, b.blob" + KEPT
_READ_MANY = "SELECT b.record_id, 0, b.bytes, b.blob" + _KEPT + "= ANY (%b) "
_WHICH_KEPT = "SELECT b.record_id" + _KEPT + "= ANY (%b) "
_WHICH_OF_SESSION = f"""
SELECT count(*), coalesce(bit_xor(uuid_hash_extended(b.record_id, 0)), 0)
{_KEPT} IN (SELECT id FROM records WHERE tenant_id = %s AND session_id = %s)
"""
_IS_KEPT = "SELECT true" + KEPT
_HELD = "FOR KEY SHARE OF b"


def sealed(master_keys: MasterKeys, tenant_id: UUID, record_id: UUID, content: bytes) -> bytes:
    """Return a bundle's exact bytes as they are stored."""
    return master_keys.seal(content, identity(tenant_id, record_id))


def item(master_keys: MasterKeys, signed: Signed) -> Item:
    """Return a signed record's bundle, sealed, to be stored at the moment of its record."""
    raw = sealed(master_keys, signed.tenant_id, signed.id, signed.raw)
    return Item(KIND, signed.tenant_id, signed.id, 0, raw, signed.created_at)


def is_kept(tx: Tx, tenant_id: UUID, record_id: UUID) -> bool:
    """Say whether a bundle may still be read: it exists, and is not due or is held."""
    return cursor(tx).execute(_IS_KEPT, (tenant_id, record_id)).fetchone() is not None


def kept(tx: Tx, tenant_id: UUID, record_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these records' bundles may still be read."""
    rows = cursor(tx).execute(_WHICH_KEPT, (tenant_id, record_ids), binary=True)
    return {record_id for (record_id,) in rows.fetchall()}


def kept_of(tx: Tx, tenant_id: UUID, session_id: UUID) -> str:
    """Name which bundles of a session's records may still be read: their count, and a hash.

    A hold that comes as another goes changes which, and not how many.
    """
    wanted = (tenant_id, tenant_id, session_id)
    ((count, which),) = cursor(tx).execute(_WHICH_OF_SESSION, wanted).fetchall()
    return f"{count}:{which:x}"


def hold(tx: Tx, tenant_id: UUID, record_id: UUID) -> bool:
    """Do what `is_kept` does, and lock the bundle against deletion until the commit."""
    return cursor(tx).execute(_IS_KEPT + _HELD, (tenant_id, record_id)).fetchone() is not None


def read(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, record_id: UUID
) -> bytes | None:
    """Return a bundle's exact bytes; None when it is due or deleted.

    Raises `app.lib.crypto.sealing.CannotOpen` when the stored bytes were changed.
    """
    # As text, bytes come at twice their length.
    found = cursor(session).execute(_READ, (tenant_id, record_id), binary=True).fetchone()
    if found is None:
        return None
    row = Row(*found)
    carried(session, len(row.bytes or b""))
    return opened(master_keys, KIND, tenant_id, row, identity(tenant_id, record_id))


@dataclass(frozen=True)
class Contents:
    """The exact bytes of bundles by their records; `damaged` are those that do not open."""

    contents: Mapping[UUID, bytes]
    damaged: Sequence[UUID]


def read_many(
    session: Session,
    master_keys: MasterKeys,
    tenant_id: UUID,
    record_ids: Sequence[UUID],
    *,
    hold: bool = False,
) -> Contents:
    """Read the bundles of a tenant's records that are neither due nor deleted.

    With `hold` they are locked against deletion until the commit. Raises `KeyMissing`.
    """
    query = _READ_MANY + (_HELD if hold else "")
    found = cursor(session).execute(query, (tenant_id, record_ids), binary=True).fetchall()
    rows = [Row(*each) for each in found]
    carried(session, max((len(row.bytes or b"") for row in rows), default=0))
    contents, damaged = {}, []
    for (record_id, *_), raw in zip(rows, stored(KIND, tenant_id, rows), strict=True):
        try:
            # An object that is lost opens as little as one that was changed.
            contents[record_id] = master_keys.open(raw or b"", identity(tenant_id, record_id))
        except KeyMissing:
            raise
        except CannotOpen:
            damaged.append(record_id)
    return Contents(contents, damaged)


def delete(session: Session, tenant_id: UUID, record_ids: Sequence[UUID]) -> int:
    """Delete bundles, and by foreign keys their packs; return the number of bundles deleted."""
    return cursor(session).execute(_DELETE, (tenant_id, record_ids)).rowcount


def identity(tenant_id: UUID, record_id: UUID) -> str:
    """Return the identity (associated data) under which a bundle is sealed."""
    return f"bundles/{tenant_id}/{record_id}"


def require_kept(session: Session, record: Record) -> None:
    """Raise `BundleExpired` when the record's bundle is due or deleted."""
    if not is_kept(session, record.tenant_id, record.id):
        raise _expired(session, record)


def content(session: Session, master_keys: MasterKeys, record: Record) -> bytes:
    """Return the exact bytes that were signed; raises `BundleExpired`."""
    raw = read(session, master_keys, record.tenant_id, record.id)
    if raw is None:
        raise _expired(session, record)
    return raw


def _expired(session: Session, record: Record) -> BundleExpired:
    digest = record.bundle_sha256
    index = records.log_indexes(session, [digest]).get(digest)
    return BundleExpired("This record's bundle was kept as long as it was to be.", digest, index)


MIB = 1024 * 1024

_OF_EACH = """
SELECT tenant_id, sum(records)::bigint, sum(bytes)::bigint FROM stored_records GROUP BY tenant_id
"""


@dataclass(frozen=True)
class StorageUse:
    """The number of a tenant's records, expired ones included, and the bytes of kept bundles."""

    records: int
    bytes: int


def of_each(session: Session) -> Mapping[UUID, StorageUse]:
    """Return the storage use of each tenant with records, in a session that sees all tenants."""
    found = cursor(session).execute(_OF_EACH).fetchall()
    return {tenant_id: StorageUse(*counts) for tenant_id, *counts in found}
