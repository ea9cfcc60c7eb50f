"""Record search, and the words it looks for: a feed with filters, or words ranked by place.

Records with all words in title, kind or labels come before those that need their content; newest
first in each. The words of content include those of metadata, and go with the bundle. All are
hashed with the tenant's search key; filters are facets beside the words.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, Select, cast, text
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.orm import Session

from app.core import feeds, word_index
from app.core.callers import Caller
from app.core.records import bundles, retention
from app.core.word_index import (
    AT_ONCE,
    MOST_CHARACTERS,
    PIECE,
    Candidate,
    Lexemes,
    in_json,
    taken_apart,
)
from app.database import Tx, cursor
from app.errors import FieldError, Invalid
from app.lib.crypto.sealing import MasterKeys
from app.models import BundleWords, Record, RecordWords

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
    lexemes = word_index.lexemes(session, master_keys, tenant_id)
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


_RANK_BITS = 128
_IN_METADATA, _IN_CONTENT = 0, 1


@dataclass(frozen=True)
class SearchPosition:
    """The position of a record in search results: by rank, then by id."""

    rank: int
    id: UUID

    @classmethod
    def read(cls, position: int) -> "SearchPosition":
        """Parse the result of `number`."""
        return cls(position >> _RANK_BITS, UUID(int=position & (1 << _RANK_BITS) - 1))

    @property
    def number(self) -> int:
        """The position as one number, for a cursor."""
        return self.rank << _RANK_BITS | self.id.int


@dataclass(frozen=True)
class Found:
    """A matching record and its position."""

    record: Record
    place: SearchPosition


@dataclass(frozen=True)
class Search:
    """A search: words as typed (None: no words, a feed), label pairs, and other filters."""

    typed: str | None
    labels: Sequence[tuple[str, str]]
    filters: Mapping[str, object]


def rows(
    session: Session,
    caller: Caller,
    master_keys: MasterKeys,
    asked: Search,
    after: int | None,
    limit: int,
) -> feeds.Page[Found]:
    """Return one page of the records that the caller may see, after the position `after`.

    It may end in the tail (`app/core/word_index.py`) before it is full. Raises `Invalid` when
    the search text has no word.
    """
    place = None if after is None else SearchPosition.read(after)
    if asked.typed is None and not asked.labels:
        before = None if place is None else place.id
        query = feeds.newest(Record, caller, asked.filters, before, limit)
        return feeds.Page(_found(session, query, _IN_METADATA))
    search = _WordSearch(session, caller, master_keys, asked)
    found: list[Found] = []
    for rank in (_IN_METADATA, _IN_CONTENT)[: 1 if asked.typed is None else 2]:
        if place is not None and place.rank > rank:
            continue
        before, place = (None if place is None else place.id), None
        more, read_to = search.not_indexed(rank, before, limit - len(found))
        found += more
        if read_to is not None:
            return feeds.Page(found, SearchPosition(rank, read_to).number)
        found += search.indexed(rank, before, limit - len(found))
    return feeds.Page(found)


def first(
    session: Session, caller: Caller, master_keys: MasterKeys, typed: str, limit: int
) -> list[Found]:
    """Return up to `limit` matches for a caller without pagination, as `rows` without early end.

    Of those that are not indexed yet only the newest are read.
    """
    search = _WordSearch(session, caller, master_keys, Search(typed, (), {}))
    found: list[Found] = []
    for rank in (_IN_METADATA, _IN_CONTENT):
        found += search.not_indexed(rank, None, limit - len(found))[0]
        found += search.indexed(rank, None, limit - len(found))
    return found


class _WordSearch:
    """A search in the tenant's lexemes."""

    def __init__(
        self, session: Session, caller: Caller, master_keys: MasterKeys, asked: Search
    ) -> None:
        self._session, self._caller, self._asked = session, caller, asked
        self._master_keys = master_keys
        self._lexemes = word_index.lexemes(session, master_keys, caller.tenant_id)
        wanted: dict[str, Any] = {name: asked.filters.get(name) for name in FACETS}
        if caller.pin is not None:
            wanted |= {"agent_id": caller.pin.agent_id, "principal": caller.pin.principal}
        pairs = self._lexemes.pairs_query([*asked.labels, *facets(wanted).items()])
        self._words = None if asked.typed is None else self._lexemes.query(asked.typed)
        if asked.typed is not None and self._words is None:
            raise Invalid(
                FieldError("/q", "Query parameter: There is no word in it to search for.")
            )
        self._query = " & ".join(f"({each})" for each in (self._words, pairs) if each is not None)
        self._through = word_index.position(session, source(master_keys), caller.tenant_id)

    def indexed(self, rank: int, before: UUID | None, limit: int) -> list[Found]:
        """Return up to `limit` matches; the planner starts with the words or with the records."""
        if limit <= 0:
            return []
        query = self._newest(before, limit).where(Record.id <= self._through)
        query = _beside(query, RecordWords, self._caller)
        if rank == _IN_METADATA:
            return _found(self._session, query.where(_matches(RecordWords, self._query)), rank)
        query = _beside(query, BundleWords, self._caller)
        query = query.where(
            _matches(BundleWords, self._query), ~_matches(RecordWords, self._words or "")
        )
        due = retention.due_before(self._session, self._caller.tenant_id)
        if due is not None:
            query = query.where((Record.created_at > due) | text(retention.held("records")))
        return _found(self._session, query, rank)

    def not_indexed(
        self, rank: int, before: UUID | None, limit: int
    ) -> tuple[list[Found], UUID | None]:
        """Return up to `limit` matches of the tail, and the last id read if it ended early."""
        if limit <= 0:
            return [], None
        read = self._read_metadata if rank == _IN_METADATA else self._read_content
        found, read_to = word_index.tail(self._session, self._query, read, before, limit)
        if not found:
            return [], read_to
        query = feeds.newest(Record, self._caller, {}, None, limit).where(Record.id.in_(found))
        return _found(self._session, query, rank), read_to

    def _read_metadata(self, before: UUID | None) -> tuple[Sequence[Candidate], bool]:
        batch = self._tail(before)
        read = [Candidate(row.id, row.metadata(self._lexemes), 0) for row, _ in batch]
        return read, len(batch) == AT_ONCE

    def _read_content(self, before: UUID | None) -> tuple[Sequence[Candidate], bool]:
        """Read bundles, without those that are found by their metadata."""
        whole = self._tail(before)
        sizes = accumulate((size for _, size in whole), initial=0)
        batch = [each for each, size in zip(whole, sizes, strict=False) if size < MOST_CHARACTERS]
        told = [Candidate(row.id, row.metadata(self._lexemes), 0) for row, _ in batch]
        found_already = set(word_index.matching(self._session, told, self._words or ""))
        wanted = [row.id for row, _ in batch if row.id not in found_already]
        tenant_id = self._caller.tenant_id
        kept = bundles.read_many(self._session, self._master_keys, tenant_id, wanted).contents
        # One that is left out has a place all the same: reading goes on behind it.
        read = [
            Candidate(row.id, row.content(self._lexemes, kept[row.id]), size)
            if row.id in kept
            else Candidate(row.id, "", 0)
            for row, size in batch
        ]
        return read, len(whole) == AT_ONCE or len(batch) < len(whole)

    def _tail(self, before: UUID | None) -> list[tuple[Indexed, int]]:
        """Return the next records that are not indexed, and the sizes of their bundles."""
        columns = [getattr(Record, name) for name in COLUMNS]
        query = self._newest(before, AT_ONCE).where(Record.id > self._through)
        rows = self._session.execute(
            query.with_only_columns(Record.id, *columns, Record.bundle_size)
        )
        return [(Indexed(*row[:-1]), row[-1]) for row in rows]

    def _newest(self, before: UUID | None, limit: int) -> Select[Any]:
        return feeds.newest(Record, self._caller, self._asked.filters, before, limit)


def _found(session: Session, query: Select[Any], rank: int) -> list[Found]:
    return [Found(row, SearchPosition(rank, row.id)) for row in session.scalars(query)]


def _beside(
    query: Select[Any], table: type[RecordWords] | type[BundleWords], caller: Caller
) -> Select[Any]:
    """Join a record's words; the planner starts with either table."""
    return query.join(table, (table.tenant_id == caller.tenant_id) & (table.record_id == Record.id))


def _matches(table: type[RecordWords] | type[BundleWords], query: str) -> ColumnElement[bool]:
    return table.words.bool_op("@@")(cast(query, TSQUERY))
