"""Words: how texts are split and hashed, and the indexes of them.

A word is a run of letters, digits and marks, compared by NFKC and casefold; Chinese, Japanese and
Thai are split into pairs. Words of records are hashed under a tenant's secret key (a blind index),
which never changes. The tick `index_words` indexes what is settled behind a tenant's position; a
search reads the tail.
"""

import itertools
import json
import re
import secrets
import unicodedata
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.database import Tx, cursor
from app.lib.crypto.sealing import MasterKeys

# Longer runs are not indexed: people do not type them.
_MOST_CHARACTERS = 64
# Words indexed per record; search does not find later ones.
MOST_WORDS = 5_000
_MOST_TEXT = 256 * 1024
_BYTES = 9
# PostgreSQL keeps no more positions of a lexeme.
_MOST_POSITIONS = 255

# Normalisation sorts marks in quadratic time of the run's length, so texts are cut into pieces.
_PIECE = 256
# Combining marks belong to the letter before them, but `\w` lacks them. Those of living scripts:
_MARKS = "".join(
    re.escape(chr(point))
    for point in (*range(0x300, 0x3000), *range(0xA66F, 0xAC00), *range(0xFE20, 0xFE30))
    if unicodedata.category(chr(point)).startswith("M")
)
_WORD = re.compile(rf"[^\W_](?:[^\W_]|[{_MARKS}])*")
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_RUNS = re.compile(rf"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_TERM = re.compile(r'"([^"]*)"|(\S+)')


def in_text(text: str) -> list[str]:
    """Return the normalised words of a text, in order."""
    text = text[:_MOST_TEXT]
    tokens = (text.lower(),) if text.isascii() else map(_normal, text.split())
    return [part for token in tokens for word in _WORD.findall(token) for part in _parts(word)]


def _normal(token: str) -> str:
    pieces = (token[at : at + _PIECE] for at in range(0, len(token), _PIECE))
    return "".join(unicodedata.normalize("NFKC", piece) for piece in pieces).casefold()


def _parts(word: str) -> Iterator[str]:
    """Yield a word as it is, or the bigrams of runs in scripts without spaces."""
    if _IS_UNSPACED.search(word) is None:
        if len(word) <= _MOST_CHARACTERS:
            yield word
        return
    for run in _RUNS.findall(word):
        if _IS_UNSPACED.match(run) and len(run) > 1:
            yield from (run[at : at + 2] for at in range(len(run) - 1))
        elif len(run) <= _MOST_CHARACTERS:
            yield run


def taken_apart(texts: Iterable[str]) -> list[Sequence[str]]:
    """Tokenize texts up to `MOST_WORDS` in all; search does not find later words."""
    found: list[Sequence[str]] = []
    left = MOST_WORDS
    for text in texts:
        found.append(in_text(text)[:left])
        left -= len(found[-1])
        if left <= 0:
            break
    return found


def in_json(value: Any) -> Iterator[str]:
    """Yield the strings and numbers in a JSON value as texts, without the names of members."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, list):
            stack.extend(reversed(item))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield json.dumps(item)


class Lexemes:
    """Turns one tenant's words into lexemes, and these into a `tsvector` or `tsquery`."""

    def __init__(self, key: bytes, size: int = _BYTES) -> None:
        """Use the tenant's search key, or for what lies beside them in clear, its id.

        `size` is how many bytes of its hash name a word. With 5, beside a million other words, one
        search in a million finds another's row.
        """
        self._key = key
        self._size = size

    def vector(self, texts: Iterable[Sequence[str]], pairs: Mapping[str, str]) -> str:
        """Return a `tsvector` of the words of texts, and of pairs of name and value.

        Each two neighbouring words of a text are a lexeme of their own, with its positions: by the
        words' positions, a search for two frequent words would read every row that has both. The
        positions of two texts do not follow each other, so a phrase never spans both.
        """
        found: dict[str, list[int]] = {self._pair(name, value): [] for name, value in pairs.items()}
        position = 0
        for words in texts:
            found.update((self._word(word), []) for word in words)
            for at, both in enumerate(itertools.pairwise(words), position):
                found.setdefault(self._neighbours(*both), []).append(at + 1)
            position += len(words)
        if any(len(positions) > _MOST_POSITIONS for positions in found.values()):
            found[self._incomplete] = []
        return " ".join(
            f"'{lexeme}':{','.join(map(str, at[:_MOST_POSITIONS]))}" if at else f"'{lexeme}'"
            for lexeme, at in found.items()
        )

    def query(self, typed: str) -> str | None:
        """Return a search text as a `tsquery`: all words, those in "quotes" as a phrase.

        None when it has no word.
        """
        terms = [
            self._term(words)
            for quoted, plain in _TERM.findall(typed)
            if (words := in_text(quoted or plain))
        ]
        return " & ".join(terms) or None

    def _term(self, words: Sequence[str]) -> str:
        if len(words) == 1:
            return f"'{self._word(words[0])}'"
        pairs = [f"'{self._neighbours(*both)}'" for both in itertools.pairwise(words)]
        if len(pairs) == 1:
            return pairs[0]
        # In a list of hundreds of dates not every position of "2026-11" is stored: there, all
        # neighbours suffice.
        unplaced = " & ".join([*pairs, f"'{self._incomplete}'"])
        return f"(({' <-> '.join(pairs)}) | ({unplaced}))"

    def pairs_query(self, pairs: Iterable[tuple[str, str]]) -> str | None:
        """Return a `tsquery` that requires all pairs; None when there are none."""
        return " & ".join(f"'{self._pair(name, value)}'" for name, value in pairs) or None

    @property
    def _incomplete(self) -> str:
        """The lexeme of a row with more positions than are stored."""
        return self._hash(b"\0")

    def _word(self, word: str) -> str:
        return self._hash(word.encode())

    def _neighbours(self, first: str, second: str) -> str:
        # Words contain no zero byte, and pairs begin with a number.
        return self._hash(f"\0{first}\0{second}".encode())

    def _pair(self, name: str, value: str) -> str:
        # Words contain no zero byte, so a pair never equals a word.
        return self._hash(f"{len(name)}\0{name}{value}".encode())

    def _hash(self, what: bytes) -> str:
        digest = blake2b(what, key=self._key, digest_size=self._size).digest()
        return urlsafe_b64encode(digest).decode().rstrip("=")


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
