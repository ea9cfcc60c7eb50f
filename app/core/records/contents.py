"""The content of a record's bundle, while it is kept."""

from sqlalchemy.orm import Session

from app.core.records import bundles, records
from app.errors import BundleExpired
from app.lib.crypto.sealing import MasterKeys
from app.models import Record


def require_kept(session: Session, record: Record) -> None:
    """Raise `BundleExpired` when the record's bundle is due or deleted."""
    if not bundles.is_kept(session, record.tenant_id, record.id):
        raise _expired(session, record)


def read(session: Session, master_keys: MasterKeys, record: Record) -> bytes:
    """Return the exact bytes that were signed; raises `BundleExpired`."""
    raw = bundles.read(session, master_keys, record.tenant_id, record.id)
    if raw is None:
        raise _expired(session, record)
    return raw


def _expired(session: Session, record: Record) -> BundleExpired:
    digest = record.bundle_sha256
    index = records.log_indexes(session, [digest]).get(digest)
    return BundleExpired("This record's bundle was kept as long as it was to be.", digest, index)
