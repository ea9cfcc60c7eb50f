"""Indexes of words: written after the commit, so that no POST pays for them.

The tick `index_words` indexes what is settled behind a tenant's position in a source; a search
reads the tail after it. Words of records are hashed under a tenant's key, which never changes.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.words.tokenizer import Lexemes
from app.database import Tx, cursor
from app.lib.crypto.sealing import MasterKeys

_FIND = "SELECT sealed_search_key FROM tenants WHERE id = %s"
_MAKE = "UPDATE tenants SET sealed_search_key = %s WHERE id = %s AND sealed_search_key IS NULL"


def lexemes(tx: Tx, master_keys: MasterKeys, tenant_id: UUID) -> Lexemes:
    """Return the tenant's keyed `Lexemes`; the first call creates the key."""
    cur = cursor(tx, scalar_row)
    sealed = cur.execute(_FIND, (tenant_id,)).fetchone()
    if sealed is None:
        # Of two concurrent calls the second waits for the row, and then finds the first one's key.
        fresh = master_keys.seal(secrets.token_bytes(32), identity(tenant_id))
        cur.execute(_MAKE, (fresh, tenant_id))
        sealed = cur.execute(_FIND, (tenant_id,)).fetchone()
    if sealed is None:
        raise LookupError(f"tenant {tenant_id} has no row")
    return _opened(master_keys, tenant_id, sealed)


@lru_cache(maxsize=4096)
def _opened(master_keys: MasterKeys, tenant_id: UUID, sealed: bytes) -> Lexemes:
    return Lexemes(master_keys.open(sealed, identity(tenant_id)))


def identity(tenant_id: UUID) -> str:
    """Return the identity (associated data) under which a search key is sealed."""
    return f"tenants/{tenant_id}/search_key"


PIECE = 250
"""How many rows one transaction indexes; of 10,000 characters each that is half a second."""

MOST_READ = 2_000
"""Most rows of the tail that one page reads."""

AT_ONCE = 200
"""How many rows of the tail are read at once."""

MOST_CHARACTERS = 1_000_000
"""Most characters, or bytes of bundles, of the tail that one page reads; it may be one row."""

_FIRST = UUID(int=0)

# The id of a row is at most ten seconds older than its transaction (app/sql/add_records.sql).
_FLOOR = """
SELECT least(clock_timestamp(), min(xact_start)) - interval '15 seconds', clock_timestamp()
  FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL
"""
# LATERAL with LIMIT costs one index probe per tenant, for any number of rows.
_BEHIND = """
SELECT t.id FROM tenants AS t
  LEFT JOIN word_positions AS p ON p.tenant_id = t.id AND p.source = '{table}'
 CROSS JOIN LATERAL (
    SELECT id FROM {table} AS f
     WHERE f.tenant_id = t.id AND f.id < %(floor)s
       AND f.id > coalesce(p.through, '00000000-0000-0000-0000-000000000000')
     ORDER BY f.id LIMIT 1) AS oldest
 WHERE p.failed_at IS NULL OR p.failed_at < %(began)s
 ORDER BY p.failed_at NULLS FIRST, oldest.id LIMIT %(limit)s
"""
_POSITION = "SELECT through FROM word_positions WHERE tenant_id = %s AND source = %s"
_ADVANCE = """
INSERT INTO word_positions AS p (tenant_id, source, through) VALUES (%s, %s, %s)
    ON CONFLICT (tenant_id, source) DO UPDATE
   SET through = greatest(p.through, excluded.through), failed_at = NULL
"""
_PUT_LAST = """
INSERT INTO word_positions (tenant_id, source, failed_at) VALUES (%s, %s, clock_timestamp())
    ON CONFLICT (tenant_id, source) DO UPDATE SET failed_at = excluded.failed_at
"""
_MATCHING = """
SELECT id FROM unnest(%s::uuid[], %s::text[]) AS fresh (id, words)
 WHERE words::tsvector @@ %s::tsquery
"""


@dataclass(frozen=True)
class Source:
    """A table whose rows have words.

    `write(session, tenant_id, after, below)` indexes the tenant's next rows between two ids, and
    returns their ids in order. It may be called for the same rows again.
    """

    table: str
    write: Callable[[Session, UUID, UUID, UUID], Sequence[UUID]]


@dataclass(frozen=True)
class Candidate:
    """A row of the tail: its id, its words as a `tsvector`, and what reading it cost."""

    id: UUID
    vector: str
    size: int


def floor(session: Session) -> tuple[UUID, datetime]:
    """Return a lower bound of the ids of rows that are not committed yet, and the time."""
    moment, now = cursor(session).execute(_FLOOR).fetchall()[0]
    return ids.earliest_at(moment), now


def behind(
    session: Session, source: Source, below: UUID, began: datetime, limit: int
) -> Sequence[UUID]:
    """Return up to `limit` tenants with rows to index below an id, longest waiting first.

    Those whose last piece failed come last, and not again if that was after `began`. In a session
    that sees all tenants.
    """
    values = {"floor": below, "began": began, "limit": limit}
    query = _BEHIND.format(table=source.table)
    return cursor(session, scalar_row).execute(query.encode(), values).fetchall()


def index_piece(session: Session, source: Source, tenant_id: UUID, below: UUID) -> int:
    """Index a tenant's next rows below an id, `PIECE` at most; return how many there were."""
    written = source.write(session, tenant_id, position(session, source, tenant_id), below)
    if written:
        cursor(session).execute(_ADVANCE, (tenant_id, source.table, written[-1]))
    return len(written)


def put_last(session: Session, source: Source, tenant_id: UUID) -> None:
    """Note that a tenant's piece failed, so that it holds up no other tenant's."""
    cursor(session).execute(_PUT_LAST, (tenant_id, source.table))


def position(session: Session, source: Source, tenant_id: UUID) -> UUID:
    """Return the id up to which a tenant's rows are indexed.

    A search reads it first: rows that are indexed meanwhile count as its tail, so no page has them
    twice.
    """
    values = (tenant_id, source.table)
    return cursor(session, scalar_row).execute(_POSITION, values).fetchone() or _FIRST


def tail(
    session: Session,
    query: str,
    read: Callable[[UUID | None], tuple[Sequence[Candidate], bool]],
    before: UUID | None,
    limit: int,
) -> tuple[list[UUID], UUID | None]:
    """Return the ids of at least `limit` rows that match a `tsquery`, if there are so many.

    `read(before)` returns the next rows, newest first, and whether more follow. The second result
    is the last id read if reading ended early.
    """
    found: list[UUID] = []
    rows, characters = 0, 0
    more = True
    while more and len(found) < limit:
        if rows >= MOST_READ or characters >= MOST_CHARACTERS:
            return found, before
        batch, more = read(before)
        found += matching(session, batch, query)
        if batch:
            before = batch[-1].id
        rows += len(batch)
        characters += sum(each.size for each in batch)
    return found, None


def matching(session: Session, batch: Sequence[Candidate], query: str) -> Sequence[UUID]:
    """Return the ids of the rows that match a `tsquery`, in the order of the batch."""
    values = ([each.id for each in batch], [each.vector for each in batch], query)
    hits = set(cursor(session, scalar_row).execute(_MATCHING, values))
    return [each.id for each in batch if each.id in hits]
