"""Looks at what a tenant has stored: as it is counted, and as it lies in the tables."""

from uuid import UUID

from sqlalchemy import text

from app.core.records import storage
from app.core.records.storage import StorageUse
from app.database import Database

_KEPT = "SELECT (SELECT count(*) FROM records), (SELECT coalesce(sum(size), 0) FROM bundles)"


def counted(database: Database, tenant_id: UUID) -> StorageUse:
    """Return what is counted."""
    with database.transaction(tenant_id) as session:
        return storage.of_each(session).get(tenant_id, StorageUse(0, 0))


def kept(database: Database, tenant_id: UUID) -> StorageUse:
    """Return what there is."""
    with database.transaction(tenant_id) as session:
        records, size = session.execute(text(_KEPT)).one()
        return StorageUse(records, int(size))
