"""Findings by words, newest first: from the index, and from what it does not have yet.

A page may end in the tail (`app/core/word_index.py`) before it is full.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import cast
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.orm import Session

from app.core import feeds, word_index
from app.core.callers import Caller
from app.core.word_index import AT_ONCE, PIECE, Candidate, Lexemes, taken_apart
from app.database import cursor
from app.errors import FieldError, Invalid
from app.models import Finding, FindingWords

# A finding's words take a quarter of its bytes: so they are short.
WORD_BYTES = 5
# Columns that are indexed beside the words: common words of one agent are found without reading
# all others'.
_FACETS = ("session_id", "record_id", "agent_id", "principal", "severity", "source", "rule")

_NEXT = f"""
SELECT id, title, rule, detail, {", ".join(_FACETS)} FROM findings
 WHERE tenant_id = (SELECT %s::uuid) AND id > %s AND id < %s ORDER BY id LIMIT {PIECE}
"""
# Another worker may index the same piece.
_STORE = """
INSERT INTO finding_words (tenant_id, finding_id, words)
SELECT %s, id, words::tsvector FROM unnest(%s::uuid[], %s::text[]) AS fresh (id, words)
    ON CONFLICT DO NOTHING
"""


class _Texts(NamedTuple):
    """The searched texts of a finding."""

    id: UUID
    title: str
    rule: str
    detail: str | None

    def vector(self, lexemes: Lexemes, facets: Mapping[str, str]) -> str:
        """Return the finding's words, and these facets, as a `tsvector`."""
        return lexemes.vector(taken_apart((self.title, self.rule, self.detail or "")), facets)

    @property
    def size(self) -> int:
        """Return the characters of its longer texts."""
        return len(self.title) + len(self.detail or "")


def _index(session: Session, tenant_id: UUID, after: UUID, below: UUID) -> Sequence[UUID]:
    """Index the tenant's next findings between two ids."""
    cur = cursor(session)
    found = cur.execute(_NEXT, (tenant_id, after, below)).fetchall()
    if not found:
        return []
    lexemes = _lexemes(tenant_id)
    vectors = [
        _Texts(*row[:4]).vector(lexemes, facets(dict(zip(_FACETS, row[4:], strict=True))))
        for row in found
    ]
    indexed = [row[0] for row in found]
    cur.execute(_STORE, (tenant_id, indexed, vectors))
    return indexed


SOURCE = word_index.Source("findings", _index)


def rows(
    session: Session,
    caller: Caller,
    typed: str,
    filters: Mapping[str, object],
    before: UUID | None,
    limit: int,
) -> feeds.Page[Finding]:
    """Return one page of the findings that the caller may see and that have all words of `typed`.

    Words in quotes must follow each other. Filters and `before` are those of `feeds.newest`.
    Raises `Invalid` when there is no word to search for.
    """
    asked = _Search(session, caller, typed, filters)
    found, read_to = asked.not_indexed(before, limit)
    if read_to is None and len(found) < limit:
        found += asked.indexed(before, limit - len(found))
    return feeds.Page(found, read_to)


def first(session: Session, caller: Caller, typed: str, limit: int) -> list[Finding]:
    """Return up to `limit` matches for a caller without pagination, as `rows` without early end.

    Of those that are not indexed yet only the newest are read.
    """
    asked = _Search(session, caller, typed, {})
    found, _ = asked.not_indexed(None, limit)
    return [*found, *asked.indexed(None, limit - len(found))]


class _Search:
    """A search in the tenant's lexemes."""

    def __init__(
        self, session: Session, caller: Caller, typed: str, filters: Mapping[str, object]
    ) -> None:
        self._session, self._caller, self._filters = session, caller, filters
        self._lexemes = _lexemes(caller.tenant_id)
        words = self._lexemes.query(typed)
        if words is None:
            raise Invalid(
                FieldError("/q", "Query parameter: There is no word in it to search for.")
            )
        self._words = words
        self._through = word_index.position(session, SOURCE, caller.tenant_id)

    def not_indexed(self, before: UUID | None, limit: int) -> tuple[list[Finding], UUID | None]:
        """Return up to `limit` matches, and the last id read if reading ended early."""
        found, read_to = word_index.tail(self._session, self._words, self._read, before, limit)
        if not found:
            return [], read_to
        query = feeds.newest(Finding, self._caller, {}, None, limit)
        return list(self._session.scalars(query.where(Finding.id.in_(found)))), read_to

    def _read(self, before: UUID | None) -> tuple[Sequence[Candidate], bool]:
        newest = feeds.newest(Finding, self._caller, self._filters, before, AT_ONCE)
        texts = newest.where(Finding.id > self._through).with_only_columns(
            Finding.id, Finding.title, Finding.rule, Finding.detail
        )
        batch = [_Texts(*row) for row in self._session.execute(texts)]
        read = [Candidate(each.id, each.vector(self._lexemes, {}), each.size) for each in batch]
        return read, len(batch) == AT_ONCE

    def indexed(self, before: UUID | None, limit: int) -> list[Finding]:
        """Return up to `limit` matches; the planner starts with the words or with the findings."""
        caller, pin = self._caller, self._caller.pin
        own = {"agent_id": pin.agent_id, "principal": pin.principal} if pin else {}
        asked = self._lexemes.pairs_query(facets({**self._filters, **own}).items())
        query = cast(f"{self._words} & {asked}" if asked else self._words, TSQUERY)
        beside = (FindingWords.tenant_id == caller.tenant_id) & (
            FindingWords.finding_id == Finding.id
        )
        found = feeds.newest(Finding, caller, self._filters, before, limit)
        found = found.join(FindingWords, beside).where(Finding.id <= self._through)
        return list(self._session.scalars(found.where(FindingWords.words.bool_op("@@")(query))))


def _lexemes(tenant_id: UUID) -> Lexemes:
    # No secret: title and detail lie in clear beside their words.
    return Lexemes(tenant_id.bytes, WORD_BYTES)


def facets(values: Mapping[str, object]) -> dict[str, str]:
    """Return what is indexed beside the words, of a row's columns or of a search's filters."""
    return {
        name: value.hex if isinstance(value, UUID) else str(value)
        for name in _FACETS
        if (value := values.get(name)) is not None
    }
