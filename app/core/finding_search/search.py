"""Findings by words, newest first: found by the index, or by reading those not indexed yet.

So a finding is found as soon as it is committed. A page reads a bounded number of unindexed
findings (the tail), and may end there before it is full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy import ColumnElement, cast
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.orm import Session

from app.core import feeds
from app.core.callers import Caller
from app.core.finding_search.indexing import FACETS, Texts
from app.core.words import facets, search_keys
from app.core.words.tokenizer import Lexemes
from app.database import cursor
from app.errors import FieldError, Invalid
from app.lib.crypto.sealing import MasterKeys
from app.models import Finding, FindingWords

MOST_READ = 2_000
_MOST_CHARACTERS = 1_000_000
_AT_ONCE = 200

_INDEXED = "SELECT findings_indexed FROM tenants WHERE id = %s"
_HOLDING = """
SELECT id FROM unnest(%s::uuid[], %s::text[]) AS fresh (id, words)
 WHERE words::tsvector @@ %s::tsquery
"""


@dataclass(frozen=True)
class Search:
    """A search: words as typed, and filters as `feeds.newest` takes them."""

    typed: str
    filters: Mapping[str, object]


@dataclass(frozen=True)
class _Asked:
    """A search, with its words as lexemes of the tenant; `before` is the pagination cursor."""

    caller: Caller
    lexemes: Lexemes
    words: str
    filters: Mapping[str, object]
    before: UUID | None


def rows(
    session: Session,
    caller: Caller,
    master_keys: MasterKeys,
    search: Search,
    before: UUID | None,
    limit: int,
) -> feeds.Page[Finding]:
    """Return one page of visible findings with all words, older than `before`.

    Raises `Invalid` when the search text has no word.
    """
    asked, through = _asked(session, caller, master_keys, search, before)
    found, read_to = _tail(session, asked, through, limit)
    if read_to is None and len(found) < limit:
        return feeds.Page([*found, *_indexed(session, asked, through, limit - len(found))])
    return feeds.Page(found, read_to)


def first(
    session: Session, caller: Caller, master_keys: MasterKeys, search: Search, limit: int
) -> list[Finding]:
    """Return up to `limit` matches for a caller without pagination, as `rows` without early end.

    Reads the newest unindexed findings, then queries the index.
    """
    asked, through = _asked(session, caller, master_keys, search, None)
    found, _ = _tail(session, asked, through, limit)
    return [*found, *_indexed(session, asked, through, limit - len(found))]


def _asked(
    session: Session,
    caller: Caller,
    master_keys: MasterKeys,
    search: Search,
    before: UUID | None,
) -> tuple[_Asked, UUID]:
    """Return the search in the tenant's lexemes, and the id through which findings are indexed."""
    lexemes = search_keys.lexemes(session, master_keys, caller.tenant_id)
    words = lexemes.query(search.typed)
    if words is None:
        raise Invalid(FieldError("/q", "Query parameter: There is no word in it to search for."))
    # Read first: findings indexed meanwhile still count as tail, so no page has them twice.
    through = cursor(session, scalar_row).execute(_INDEXED, (caller.tenant_id,)).fetchone()
    return _Asked(caller, lexemes, words, search.filters, before), through or UUID(int=0)


def _tail(
    session: Session, asked: _Asked, through: UUID, limit: int
) -> tuple[list[Finding], UUID | None]:
    """Return up to `limit` matches in the tail, and the last id read if reading ended early."""
    found: list[UUID] = []
    before, read, characters = asked.before, 0, 0
    while len(found) < limit:
        if read >= MOST_READ or characters >= _MOST_CHARACTERS:
            return _load(session, asked, found), before
        newest = feeds.newest(Finding, asked.caller, asked.filters, before, _AT_ONCE)
        texts = newest.where(Finding.id > through).with_only_columns(
            Finding.id, Finding.title, Finding.rule, Finding.detail
        )
        batch = [Texts(*row) for row in session.execute(texts)]
        found += _holding(session, asked, batch)
        if len(batch) < _AT_ONCE:
            break
        before, read = batch[-1].id, read + len(batch)
        characters += sum(len(each.title) + len(each.detail or "") for each in batch)
    return _load(session, asked, found[:limit]), None


def _holding(session: Session, asked: _Asked, batch: Sequence[Texts]) -> list[UUID]:
    """Return the ids of the findings with all words, in the order of the batch."""
    if not batch:
        return []
    vectors = [each.vector(asked.lexemes, {}) for each in batch]
    values = ([each.id for each in batch], vectors, asked.words)
    holding = set(cursor(session, scalar_row).execute(_HOLDING, values))
    return [each.id for each in batch if each.id in holding]


def _load(session: Session, asked: _Asked, wanted: Sequence[UUID]) -> list[Finding]:
    if not wanted:
        return []
    query = feeds.newest(Finding, asked.caller, {}, None, len(wanted))
    return list(session.scalars(query.where(Finding.id.in_(wanted))))


def _indexed(session: Session, asked: _Asked, through: UUID, limit: int) -> list[Finding]:
    """Return up to `limit` matches in the index; the planner starts with words or with findings."""
    query = feeds.newest(Finding, asked.caller, asked.filters, asked.before, limit)
    beside = (FindingWords.tenant_id == asked.caller.tenant_id) & (
        FindingWords.finding_id == Finding.id
    )
    matching = _matches(asked)
    found = query.join(FindingWords, beside).where(Finding.id <= through, matching)
    return list(session.scalars(found))


def _matches(asked: _Asked) -> ColumnElement[bool]:
    pairs = asked.lexemes.pairs_query(facets.asked(asked.caller, asked.filters, FACETS))
    everything = asked.words if pairs is None else f"({asked.words}) & {pairs}"
    return FindingWords.words.bool_op("@@")(cast(everything, TSQUERY))
