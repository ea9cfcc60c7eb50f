"""The words of records: those of metadata, and with those of the content, for the bundle's life.

Both are hashed with the tenant's search key. Facets stand beside them.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app.core.records import bundles
from app.core.words import search_keys, word_index
from app.core.words.tokenizer import Lexemes, in_json, taken_apart
from app.core.words.word_index import PIECE
from app.database import Tx, cursor
from app.lib.crypto.sealing import MasterKeys

_log = structlog.get_logger(__name__)

FACETS = ("session_id", "agent_id", "principal", "kind")
"""The columns of a record that are indexed together with its words."""

_MOST_BYTES = 4 * 1024 * 1024
COLUMNS = (*FACETS, "title", "labels_json")
"""The columns that an `Indexed` is made of, beside its id."""

_NEXT = f"""
SELECT id, {", ".join(COLUMNS)} FROM (
    SELECT *, sum(bundle_size) OVER (ORDER BY id) - bundle_size AS bytes_before FROM (
        SELECT * FROM records
         WHERE tenant_id = (SELECT %s::uuid) AND id > %s AND id < %s ORDER BY id LIMIT {PIECE}
    ) AS r) AS r
 WHERE bytes_before < {_MOST_BYTES} ORDER BY id
"""
# Another worker may index the same piece.
_STORE = """
INSERT INTO {} (tenant_id, record_id, words)
SELECT %s, id, words::tsvector FROM unnest(%s::uuid[], %s::text[]) AS fresh (id, words)
    ON CONFLICT DO NOTHING
"""
_STORE_METADATA = _STORE.format("record_words")
_STORE_CONTENT = _STORE.format("bundle_words")
_FORGET = "DELETE FROM bundle_words WHERE tenant_id = %s AND record_id = ANY (%b)"


@dataclass(frozen=True)
class Indexed:
    """What of a record's metadata is indexed."""

    id: UUID
    session_id: UUID
    agent_id: UUID
    principal: str
    kind: str
    title: str
    labels_json: str

    def metadata(self, lexemes: Lexemes) -> str:
        """Return the words of the metadata as a `tsvector`."""
        return lexemes.vector(taken_apart(self._texts), self._pairs)

    def content(self, lexemes: Lexemes, raw: bytes) -> str:
        """Return the words of the metadata, and of the bundle with these bytes, as a `tsvector`."""
        told = itertools.chain(self._texts, _in_bundle(raw))
        return lexemes.vector(taken_apart(told), self._pairs)

    @property
    def _labels(self) -> dict[str, str]:
        labels: dict[str, str] = json.loads(self.labels_json)
        return labels

    @property
    def _texts(self) -> Sequence[str]:
        return (self.title, self.kind, *self._labels, *self._labels.values())

    @property
    def _pairs(self) -> dict[str, str]:
        return {**self._labels, **facets({name: getattr(self, name) for name in FACETS})}


def facets(values: Mapping[str, UUID | str | None]) -> dict[str, str]:
    """Return the facets of a row from its columns, as name and value; a null has none.

    Label names contain no colon, so they differ from facets.
    """
    return {
        f":{name}": value.hex if isinstance(value, UUID) else value
        for name, value in values.items()
        if value is not None
    }


def _in_bundle(raw: bytes) -> Iterator[str]:
    """Yield the names of steps, of their kinds, inputs and outputs, then all texts of the content.

    The bytes were canonical JSON when they were sealed, and nobody else has changed them.
    """
    bundle: dict[str, Any] = json.loads(raw)
    for step in bundle["steps"]:
        yield from (step["name"], step["kind"])
        yield from (*step.get("inputs", ()), *step.get("outputs", ()))
    yield from in_json(bundle["content"])


def source(master_keys: MasterKeys) -> word_index.Source:
    """Return records as a source of words."""
    return word_index.Source("records", partial(_index, master_keys))


def _index(
    master_keys: MasterKeys, session: Session, tenant_id: UUID, after: UUID, below: UUID
) -> Sequence[UUID]:
    """Index the tenant's next records between two ids, and 4 MiB of bundles or one larger one.

    A bundle that is due has no words any more; one that was damaged has none either, and is logged.
    Raises `KeyMissing` for one that a worker with all master keys can open.
    """
    cur = cursor(session)
    found = [Indexed(*row) for row in cur.execute(_NEXT, (tenant_id, after, below))]
    if not found:
        return []
    lexemes = search_keys.lexemes(session, master_keys, tenant_id)
    indexed = [each.id for each in found]
    # Held, so that expiry deletes the words that are stored here too.
    kept = bundles.read_many(session, master_keys, tenant_id, indexed, hold=True)
    if kept.damaged:
        damaged = [str(each) for each in kept.damaged]
        _log.error("bundles_damaged", tenant=str(tenant_id), records=damaged)
    contents = [each for each in found if each.id in kept.contents]
    vectors = [each.content(lexemes, kept.contents[each.id]) for each in contents]
    cur.execute(_STORE_METADATA, (tenant_id, indexed, [each.metadata(lexemes) for each in found]))
    cur.execute(_STORE_CONTENT, (tenant_id, [each.id for each in contents], vectors))
    return indexed


def forget_content(tx: Tx, tenant_id: UUID, record_ids: Sequence[UUID]) -> None:
    """Delete the words of the content of records, after their bundles."""
    cursor(tx).execute(_FORGET, (tenant_id, record_ids))
