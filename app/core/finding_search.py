"""Findings by words, newest first.

Words are indexed after the commit, so that no POST pays for it: of each tenant up to a high-water
mark, `tenants.findings_indexed`. A search reads what is newer, so a finding is found as soon as it
is committed; a page may end there before it is full.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy import cast
from sqlalchemy.dialects.postgresql import TSQUERY
from sqlalchemy.orm import Session

from app import ids
from app.core import feeds
from app.core.callers import Caller
from app.core.words.tokenizer import Lexemes, taken_apart
from app.database import cursor
from app.errors import FieldError, Invalid
from app.models import Finding, FindingWords

PIECE = 250
"""How many findings one transaction indexes; of 10,000 characters each that is half a second."""

MOST_READ = 2_000
"""Most findings not yet indexed that one page reads."""

_MOST_CHARACTERS = 1_000_000
_AT_ONCE = 200
# Columns that are indexed beside the words: common words of one agent are found without reading
# all others'.
_FACETS = ("session_id", "record_id", "agent_id", "principal", "severity", "source", "rule")

# A finding's id comes from the database's clock, after its transaction began; the margin is ample.
_FLOOR = """
SELECT least(clock_timestamp(), min(xact_start)) - interval '10 seconds'
  FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL
"""
# LATERAL with LIMIT costs one index probe per tenant, for any number of findings.
_BEHIND = """
SELECT t.id FROM tenants AS t CROSS JOIN LATERAL (
    SELECT id FROM findings AS f
     WHERE f.tenant_id = t.id AND f.id < %(floor)s
       AND f.id > coalesce(t.findings_indexed, '00000000-0000-0000-0000-000000000000')
     ORDER BY f.id LIMIT 1) AS oldest
 ORDER BY oldest.id LIMIT %(limit)s
"""
_NEXT = f"""
SELECT id, title, rule, detail, {", ".join(_FACETS)} FROM findings
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND id < %(floor)s AND id > coalesce(
       (SELECT findings_indexed FROM tenants WHERE id = %(tenant)s),
       '00000000-0000-0000-0000-000000000000')
 ORDER BY id LIMIT {PIECE}
"""
# Another worker may index the same piece.
_STORE = """
INSERT INTO finding_words (tenant_id, finding_id, words)
SELECT %s, id, words::tsvector FROM unnest(%s::uuid[], %s::text[]) AS fresh (id, words)
    ON CONFLICT DO NOTHING
"""
_ADVANCE = """
UPDATE tenants SET findings_indexed = %(through)s
 WHERE id = %(tenant)s AND (findings_indexed IS NULL OR findings_indexed < %(through)s)
"""
_INDEXED = "SELECT findings_indexed FROM tenants WHERE id = %s"
_MATCHING = """
SELECT id FROM unnest(%s::uuid[], %s::text[]) AS fresh (id, words)
 WHERE words::tsvector @@ %s::tsquery
"""


class _Texts(NamedTuple):
    """The searched texts of a finding."""

    id: UUID
    title: str
    rule: str
    detail: str | None

    def vector(self, lexemes: Lexemes) -> str:
        """Return the finding's words as a `tsvector`."""
        return lexemes.vector(taken_apart((self.title, self.rule, self.detail or "")), {})


def floor(session: Session) -> UUID:
    """Return a lower bound of the ids of findings that are not committed yet."""
    moment = cursor(session, scalar_row).execute(_FLOOR).fetchone()
    assert moment is not None  # noqa: S101  # an aggregate has always a row
    return ids.earliest_at(moment)


def behind(session: Session, below: UUID, limit: int) -> Sequence[UUID]:
    """Return up to `limit` tenants with findings to index below an id, longest waiting first.

    In a session that sees all tenants.
    """
    values = {"floor": below, "limit": limit}
    return cursor(session, scalar_row).execute(_BEHIND, values).fetchall()


def index_piece(session: Session, tenant_id: UUID, below: UUID) -> int:
    """Index a tenant's next findings below an id, `PIECE` at most; return how many there were."""
    cur = cursor(session)
    found = cur.execute(_NEXT, {"tenant": tenant_id, "floor": below}).fetchall()
    if found:
        lexemes = _lexemes(tenant_id)
        facets = (_facets(dict(zip(_FACETS, row[4:], strict=True))) for row in found)
        words = (_Texts(*row[:4]).vector(lexemes) for row in found)
        vectors = [" ".join([own, *others]) for own, others in zip(words, facets, strict=True)]
        cur.execute(_STORE, (tenant_id, [row[0] for row in found], vectors))
        cur.execute(_ADVANCE, {"tenant": tenant_id, "through": found[-1][0]})
    return len(found)


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
        # Read first: findings indexed meanwhile count as not indexed, so no page has them twice.
        through = cursor(session, scalar_row).execute(_INDEXED, (caller.tenant_id,)).fetchone()
        self._through = through or UUID(int=0)

    def not_indexed(self, before: UUID | None, limit: int) -> tuple[list[Finding], UUID | None]:
        """Return up to `limit` matches, and the last id read if reading ended early."""
        found: list[UUID] = []
        read, characters = 0, 0
        read_to = None
        while len(found) < limit:
            if read >= MOST_READ or characters >= _MOST_CHARACTERS:
                read_to = before
                break
            newest = feeds.newest(Finding, self._caller, self._filters, before, _AT_ONCE)
            texts = newest.where(Finding.id > self._through).with_only_columns(
                Finding.id, Finding.title, Finding.rule, Finding.detail
            )
            batch = [_Texts(*row) for row in self._session.execute(texts)]
            found += self._matching(batch)
            if len(batch) < _AT_ONCE:
                break
            before, read = batch[-1].id, read + len(batch)
            characters += sum(len(each.title) + len(each.detail or "") for each in batch)
        if not found:
            return [], read_to
        query = feeds.newest(Finding, self._caller, {}, None, limit)
        return list(self._session.scalars(query.where(Finding.id.in_(found)))), read_to

    def indexed(self, before: UUID | None, limit: int) -> list[Finding]:
        """Return up to `limit` matches; the planner starts with the words or with the findings."""
        caller, pin = self._caller, self._caller.pin
        own = {"agent_id": pin.agent_id, "principal": pin.principal} if pin else {}
        facets = _facets({**self._filters, **own})
        query = cast(" & ".join([self._words, *facets]), TSQUERY)
        beside = (FindingWords.tenant_id == caller.tenant_id) & (
            FindingWords.finding_id == Finding.id
        )
        found = feeds.newest(Finding, caller, self._filters, before, limit)
        found = found.join(FindingWords, beside).where(Finding.id <= self._through)
        return list(self._session.scalars(found.where(FindingWords.words.bool_op("@@")(query))))

    def _matching(self, batch: Sequence[_Texts]) -> Sequence[UUID]:
        """Return the ids of the findings with all words, in the order of the batch."""
        vectors = [each.vector(self._lexemes) for each in batch]
        values = ([each.id for each in batch], vectors, self._words)
        matching = set(cursor(self._session, scalar_row).execute(_MATCHING, values))
        return [each.id for each in batch if each.id in matching]


def _lexemes(tenant_id: UUID) -> Lexemes:
    # No secret: title and detail lie in clear beside their words.
    return Lexemes(tenant_id.bytes)


def _facets(values: Mapping[str, object]) -> list[str]:
    """Return the facets among a row's columns, or a search's filters, as quoted lexemes."""
    facets = (
        f"{name}={value.hex if isinstance(value, UUID) else value}"
        for name in _FACETS
        if (value := values.get(name)) is not None
    )
    return ["'" + each.replace("\\", "\\\\").replace("'", "''") + "'" for each in facets]
