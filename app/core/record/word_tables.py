"""Where the words of records are kept: those of the metadata for good, all of them until expiry."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from app.core.record.words import Lexemes
from app.database import Tx, cursor

_STORE = "INSERT INTO {} (tenant_id, record_id, words) VALUES (%s, %s, %s::tsvector)"
_TOLD = _STORE.format("record_words")
_CONTAINED = _STORE.format("bundle_words")
_FORGET = "DELETE FROM bundle_words WHERE tenant_id = %s AND record_id = ANY (%b)"


def store(
    tx: Tx,
    lexemes: Lexemes,
    tenant_id: UUID,
    record_id: UUID,
    pairs: Mapping[str, str],
    told: Sequence[str],
    contained: Sequence[str],
) -> None:
    """Store the words of a record: those `told` in its metadata, and these with its content's.

    Both together, because what somebody looks for may be half in one and half in the other.
    """
    cur = cursor(tx)
    cur.execute(_TOLD, (tenant_id, record_id, lexemes.vector(told, pairs)))
    everything = lexemes.vector((*told, *contained), pairs)
    cur.execute(_CONTAINED, (tenant_id, record_id, everything))


def forget_content(tx: Tx, tenant_id: UUID, record_ids: Sequence[UUID]) -> None:
    """Delete the words that were taken from the content of records."""
    cursor(tx).execute(_FORGET, (tenant_id, record_ids))
