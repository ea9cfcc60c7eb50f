"""Record search: a feed with filters, or words ranked by where they were found.

Records with all words in title, kind or labels come before those that need their content; newest
first in each. The words of content include those of metadata, and go with the bundle. Filters are
facets beside the words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, cast
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.orm import Session

from app.core import feeds
from app.core.callers import Caller
from app.core.records import retention
from app.core.words import search_keys
from app.database import Tx, cursor
from app.errors import FieldError, Invalid
from app.lib.crypto.sealing import MasterKeys
from app.models import BundleWords, Record, RecordWords

FACETS = ("session_id", "agent_id", "principal", "kind")
"""The columns of a record that are indexed together with its words."""

_STORE = "INSERT INTO {} (tenant_id, record_id, words) VALUES (%s, %s, %s::tsvector)"
_STORE_METADATA = _STORE.format("record_words")
_STORE_CONTENT = _STORE.format("bundle_words")
_FORGET = "DELETE FROM bundle_words WHERE tenant_id = %s AND record_id = ANY (%b)"

_RANK_BITS = 128
_IN_METADATA, _IN_CONTENT = 0, 1


def facets(values: Mapping[str, UUID | str | None]) -> dict[str, str]:
    """Return the facets of a row from its columns, as name and value; a null has none.

    Label names contain no colon, so they differ from facets.
    """
    return {
        f":{name}": value.hex if isinstance(value, UUID) else value
        for name, value in values.items()
        if value is not None
    }


def store(tx: Tx, tenant_id: UUID, record_id: UUID, metadata: str, content: str) -> None:
    """Store a record's words, as the text of two `tsvector`s."""
    cur = cursor(tx)
    cur.execute(_STORE_METADATA, (tenant_id, record_id, metadata))
    cur.execute(_STORE_CONTENT, (tenant_id, record_id, content))


def forget_content(tx: Tx, tenant_id: UUID, record_ids: Sequence[UUID]) -> None:
    """Delete the words of the content of records."""
    cursor(tx).execute(_FORGET, (tenant_id, record_ids))


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
) -> list[Found]:
    """Return one page of the records that the caller may see, after the position `after`.

    Raises `Invalid` when the search text has no word.
    """
    place = None if after is None else SearchPosition.read(after)
    if asked.typed is None and not asked.labels:
        return _page(session, caller, asked, (), place, limit, _IN_METADATA)
    lexemes = search_keys.lexemes(session, master_keys, caller.tenant_id)
    wanted: dict[str, Any] = {name: asked.filters.get(name) for name in FACETS}
    if caller.pin is not None:
        wanted |= {"agent_id": caller.pin.agent_id, "principal": caller.pin.principal}
    pairs = lexemes.pairs_query([*asked.labels, *facets(wanted).items()])
    if asked.typed is None:
        with_pairs = [_matches(RecordWords, pairs)]
        return _page(session, caller, asked, with_pairs, place, limit, _IN_METADATA)
    words = lexemes.query(asked.typed)
    if words is None:
        raise Invalid(FieldError("/q", "Query parameter: There is no word in it to search for."))
    found: list[Found] = []
    if place is None or place.rank == _IN_METADATA:
        in_metadata = [_matches(RecordWords, words, pairs)]
        found = _page(session, caller, asked, in_metadata, place, limit, _IN_METADATA)
        place = None
    if len(found) < limit:
        in_content = _only_in_content(session, caller, words, pairs)
        found += _page(session, caller, asked, in_content, place, limit - len(found), _IN_CONTENT)
    return found


def _page(
    session: Session,
    caller: Caller,
    asked: Search,
    conditions: Sequence[ColumnElement[bool]],
    place: SearchPosition | None,
    limit: int,
    rank: int,
) -> list[Found]:
    before = None if place is None else place.id
    query: Select[Any] = feeds.newest(Record, caller, asked.filters, before, limit)
    if conditions:
        query = _beside(query, RecordWords, caller)
    if rank == _IN_CONTENT:
        query = _beside(query, BundleWords, caller)
    return [
        Found(row, SearchPosition(rank, row.id))
        for row in session.scalars(query.where(*conditions)).all()
    ]


def _beside(
    query: Select[Any], table: type[RecordWords] | type[BundleWords], caller: Caller
) -> Select[Any]:
    """Join a record's words; the planner starts with either table."""
    return query.join(table, (table.tenant_id == caller.tenant_id) & (table.record_id == Record.id))


def _only_in_content(
    session: Session, caller: Caller, words: str, pairs: str | None
) -> list[ColumnElement[bool]]:
    conditions = [_matches(BundleWords, words, pairs), ~_matches(RecordWords, words)]
    due = retention.due_before(session, caller.tenant_id)
    return conditions if due is None else [*conditions, Record.created_at > due]


def _matches(
    table: type[RecordWords] | type[BundleWords], *queries: str | None
) -> ColumnElement[bool]:
    """Return the condition that all queries match; those that are None match everything."""
    everything = " & ".join(f"({query})" for query in queries if query is not None)
    return table.words.bool_op("@@")(cast(everything, TSQUERY))
