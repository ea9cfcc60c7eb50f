"""The storage port of bundles, in PostgreSQL.

Bytes are sealed for their row, so dumps, dead rows, the write-ahead log and backups do not reveal
content.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.records import retention
from app.database import Tx, carried, cursor
from app.lib.crypto.sealing import MasterKeys

_STORE = """
INSERT INTO bundles (tenant_id, record_id, sha256, size, bytes) VALUES (%s, %s, %s, %s, %b)
"""
KEPT = f"""
  FROM bundles AS b
  JOIN records AS r ON r.tenant_id = b.tenant_id AND r.id = b.record_id
  JOIN tenants AS t ON t.id = b.tenant_id
 WHERE b.tenant_id = %s AND b.record_id = %s
   AND coalesce(r.created_at > {retention.DUE_BEFORE}, true)
"""
_DELETE = "DELETE FROM bundles WHERE tenant_id = %s AND record_id = ANY (%b)"
_READ = "SELECT b.bytes" + KEPT
_IS_KEPT = "SELECT true" + KEPT
_HOLD = _IS_KEPT + "FOR KEY SHARE OF b"


def store(
    tx: Tx, master_keys: MasterKeys, tenant_id: UUID, record_id: UUID, content: bytes, digest: bytes
) -> None:
    """Store a bundle's exact bytes, whose SHA-256 is `digest`."""
    sealed = master_keys.seal(content, identity(tenant_id, record_id))
    carried(tx, len(sealed))
    cursor(tx).execute(_STORE, (tenant_id, record_id, digest, len(content), sealed))


def is_kept(tx: Tx, tenant_id: UUID, record_id: UUID) -> bool:
    """Say whether a bundle may still be read: it exists, and is not due for expiry."""
    return cursor(tx).execute(_IS_KEPT, (tenant_id, record_id)).fetchone() is not None


def hold(tx: Tx, tenant_id: UUID, record_id: UUID) -> bool:
    """Do what `is_kept` does, and lock the bundle against deletion until the commit."""
    return cursor(tx).execute(_HOLD, (tenant_id, record_id)).fetchone() is not None


def read(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, record_id: UUID
) -> bytes | None:
    """Return a bundle's exact bytes; None when it is due or deleted.

    Raises `app.lib.crypto.sealing.CannotOpen` when the stored bytes were changed.
    """
    # As text, bytes come at twice their length.
    row = cursor(session).execute(_READ, (tenant_id, record_id), binary=True).fetchone()
    if row is None:
        return None
    carried(session, len(row[0]))
    return master_keys.open(row[0], identity(tenant_id, record_id))


def delete(session: Session, tenant_id: UUID, record_ids: Sequence[UUID]) -> int:
    """Delete bundles, and by foreign keys their packs; return the number of bundles deleted."""
    return cursor(session).execute(_DELETE, (tenant_id, record_ids)).rowcount


def identity(tenant_id: UUID, record_id: UUID) -> str:
    """Return the identity (associated data) under which a bundle is sealed."""
    return f"bundles/{tenant_id}/{record_id}"
