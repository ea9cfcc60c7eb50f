"""The search index: words of metadata are permanent, words of content end with the bundle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.core.words.tokenizer import Lexemes, Text
from app.database import Tx, cursor

_STORE = "INSERT INTO {} (tenant_id, record_id, words) VALUES (%s, %s, %s::tsvector)"
_TOLD = _STORE.format("record_words")
_EVERYTHING = _STORE.format("bundle_words")
_FORGET = "DELETE FROM bundle_words WHERE tenant_id = %s AND record_id = ANY (%b)"


@dataclass(frozen=True)
class WordVectors:
    """The words of one record, as PostgreSQL takes them.

    `everything` has those of the metadata too: what somebody looks for may be half in one and half
    in the other.
    """

    told: str
    everything: str

    @classmethod
    def of(
        cls,
        lexemes: Lexemes,
        told: Sequence[Text],
        contained: Sequence[Text],
        pairs: Mapping[str, str],
    ) -> "WordVectors":
        """Write the words `told` in the metadata, those `contained`, and pairs as wholes."""
        return cls(lexemes.vector(told, pairs), lexemes.vector((*told, *contained), pairs))

    def store(self, tx: Tx, tenant_id: UUID, record_id: UUID) -> None:
        """Store them."""
        cur = cursor(tx)
        cur.execute(_TOLD, (tenant_id, record_id, self.told))
        cur.execute(_EVERYTHING, (tenant_id, record_id, self.everything))


def forget_content(tx: Tx, tenant_id: UUID, record_ids: Sequence[UUID]) -> None:
    """Delete the words that were taken from the content of records."""
    cursor(tx).execute(_FORGET, (tenant_id, record_ids))
