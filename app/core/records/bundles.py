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
_KEPT_OF = f"""
  FROM bundles AS b
  JOIN records AS r ON r.tenant_id = b.tenant_id AND r.id = b.record_id
  JOIN tenants AS t ON t.id = b.tenant_id
 WHERE b.tenant_id = %s AND b.record_id = {{}}
   AND coalesce(r.created_at > {retention.DUE_BEFORE}, true)
"""
KEPT = _KEPT_OF.format("%s")
_DELETE = "DELETE FROM bundles WHERE tenant_id = %s AND record_id = ANY (%b)"
_READ = "SELECT b.record_id, b.bytes" + _KEPT_OF.format("ANY (%b)")
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
    return read_several(session, master_keys, tenant_id, [record_id]).get(record_id)


def read_several(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, record_ids: Sequence[UUID]
) -> dict[UUID, bytes]:
    """Return the exact bytes of bundles by their records' ids, without those due or deleted.

    Raises as `read` does.
    """
    # As text, bytes come at twice their length.
    rows = cursor(session).execute(_READ, (tenant_id, list(record_ids)), binary=True).fetchall()
    carried(session, sum(len(sealed) for _, sealed in rows))
    return {
        record_id: master_keys.open(sealed, identity(tenant_id, record_id))
        for record_id, sealed in rows
    }


def delete(session: Session, tenant_id: UUID, record_ids: Sequence[UUID]) -> int:
    """Delete bundles, and by foreign keys their packs; return the number of bundles deleted."""
    return cursor(session).execute(_DELETE, (tenant_id, record_ids)).rowcount


def identity(tenant_id: UUID, record_id: UUID) -> str:
    """Return the identity (associated data) under which a bundle is sealed."""
    return f"bundles/{tenant_id}/{record_id}"
