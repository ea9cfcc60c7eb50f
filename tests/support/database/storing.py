"""Looks at what a tenant has stored, as it is counted and as it lies in tables; indexes words."""

from functools import partial
from uuid import UUID

from sqlalchemy import text

from app import ids
from app.core import finding_search, word_index
from app.core.blobs import reading, store
from app.core.records import bundles, search
from app.core.records.bundles import StorageUse
from app.core.word_index import Source
from app.database import Database
from app.settings import Settings

_KEPT = "SELECT (SELECT count(*) FROM records), (SELECT coalesce(sum(size), 0) FROM bundles)"


def counted(database: Database, tenant_id: UUID) -> StorageUse:
    """Return what is counted."""
    with database.transaction(tenant_id) as session:
        return bundles.of_each(session).get(tenant_id, StorageUse(0, 0))


def kept(database: Database, tenant_id: UUID) -> StorageUse:
    """Return what there is."""
    with database.transaction(tenant_id) as session:
        records, size = session.execute(text(_KEPT)).one()
        return StorageUse(records, int(size))


def index_words(database: Database, settings: Settings, tenant_id: UUID) -> tuple[int, int]:
    """Index the words of a tenant's findings and records; return how many rows there were."""

    def index(source: Source) -> int:
        with database.transaction(tenant_id) as session:
            return word_index.index_piece(session, source, tenant_id, ids.new())

    blobs = store.of(settings.blob_url)
    sources = (finding_search.SOURCE, search.source(settings.master_keys))
    findings, records = (reading.fetching(blobs, partial(index, each)) for each in sources)
    return findings, records
