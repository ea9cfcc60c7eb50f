"""The words of findings, indexed after their commit, so that no POST pays for it.

Each tenant is indexed up to a high-water mark, `tenants.findings_indexed`. It never passes a
finding of an open transaction: ids come from the database's clock, after their transaction began.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.words import facets, search_keys
from app.core.words.tokenizer import Lexemes, taken_apart
from app.database import cursor
from app.lib.crypto.sealing import MasterKeys

FACETS = ("session_id", "record_id", "agent_id", "principal", "severity", "rule")
"""The columns of a finding that are indexed together with its words."""

PIECE = 250
"""How many findings one transaction indexes; of 10,000 characters each that is half a second."""

# The statement that stores a finding generates its id, so this margin is ample.
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
 WHERE t.id <> ALL(%(without)s)
 ORDER BY oldest.id LIMIT %(limit)s
"""
_NEXT = f"""
SELECT id, title, rule, detail, {", ".join(FACETS)} FROM findings
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


class Texts(NamedTuple):
    """The searched texts of a finding."""

    id: UUID
    title: str
    rule: str
    detail: str | None

    def vector(self, lexemes: Lexemes, columns: Mapping[str, UUID | str | None]) -> str:
        """Return the finding's words as a `tsvector`, with the facets of these columns."""
        texts = taken_apart((self.title, self.rule, self.detail or ""))
        return lexemes.vector(texts, facets.of(columns))


def floor(session: Session) -> UUID:
    """Return a lower bound of the ids of findings that are not committed yet."""
    moment = cursor(session, scalar_row).execute(_FLOOR).fetchone()
    assert moment is not None  # noqa: S101  # an aggregate has always a row
    return ids.earliest_at(moment)


def behind(
    session: Session, below: UUID, limit: int, without: Sequence[UUID] = ()
) -> Sequence[UUID]:
    """Return up to `limit` tenants with findings to index below an id, longest waiting first.

    None of those in `without`. In a session that sees all tenants.
    """
    values = {"floor": below, "limit": limit, "without": [*without]}
    return cursor(session, scalar_row).execute(_BEHIND, values).fetchall()


def index_piece(session: Session, master_keys: MasterKeys, tenant_id: UUID, below: UUID) -> int:
    """Index a tenant's next findings below an id, `PIECE` at most; return how many there were."""
    cur = cursor(session)
    found = cur.execute(_NEXT, {"tenant": tenant_id, "floor": below}).fetchall()
    if found:
        lexemes = search_keys.lexemes(session, master_keys, tenant_id)
        vectors = [
            Texts(*row[:4]).vector(lexemes, dict(zip(FACETS, row[4:], strict=True)))
            for row in found
        ]
        cur.execute(_STORE, (tenant_id, [row[0] for row in found], vectors))
        cur.execute(_ADVANCE, {"tenant": tenant_id, "through": found[-1][0]})
    return len(found)
