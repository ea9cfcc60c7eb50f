"""The search index: words of metadata are permanent, words of content end with the bundle.

The words of content include those of metadata: a search may have some in one and some in the other.
"""

from collections.abc import Sequence
from uuid import UUID

from app.database import Tx, cursor

_STORE = "INSERT INTO {} (tenant_id, record_id, words) VALUES (%s, %s, %s::tsvector)"
_STORE_METADATA = _STORE.format("record_words")
_STORE_CONTENT = _STORE.format("bundle_words")
_FORGET = "DELETE FROM bundle_words WHERE tenant_id = %s AND record_id = ANY (%b)"


def store(tx: Tx, tenant_id: UUID, record_id: UUID, metadata: str, content: str) -> None:
    """Store a record's words, as the text of two `tsvector`s."""
    cur = cursor(tx)
    cur.execute(_STORE_METADATA, (tenant_id, record_id, metadata))
    cur.execute(_STORE_CONTENT, (tenant_id, record_id, content))


def forget_content(tx: Tx, tenant_id: UUID, record_ids: Sequence[UUID]) -> None:
    """Delete the words of the content of records."""
    cursor(tx).execute(_FORGET, (tenant_id, record_ids))
