"""Records by the million, written straight into a database, with words as people use them.

The n-th most frequent word is n times as rare as the first (Zipf). Twenty thousand texts are made
and used again and again; what differs from record to record is id, age and hash.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg

from app import ids
from app.core import tenants, word_index
from app.core.callers import Caller, Role
from app.core.records import search
from app.core.word_index import Lexemes, taken_apart
from app.database import Database
from app.settings import Settings
from bench.datasets import crowd
from bench.lab import owner_url

_TEXTS = 20_000
_VOCABULARY = 20_000
_IN_TITLE, _IN_CONTENT = 6, 40
_AGENTS = 50
_KINDS = ("tool.call", "decision", "message", "payment")
_BUNDLE_BYTES = 500
_WEIGHTS = list(itertools.accumulate(1 / rank for rank in range(1, _VOCABULARY + 1)))

# Indexes are made at the end, as a restore does it.
_SLOW = ("record_words_words", "bundle_words_words")

_PEOPLE = """
WITH agent AS (
    INSERT INTO agents (tenant_id, id, name)
    SELECT %(tenant)s, id, 'bench' FROM unnest(%(ids)s::uuid[]) AS a (id)
)
INSERT INTO sessions (tenant_id, id, agent_id, principal, status)
SELECT %(tenant)s, id, id, 'bench', 'open' FROM unnest(%(ids)s::uuid[]) AS a (id)
"""
_KEY = """
INSERT INTO signing_keys (key_id, purpose, public_key, sealed_private_key, retired_at)
VALUES ('bench', 'bundle', decode(repeat('00', 32), 'hex'), '', clock_timestamp())
"""
_TEMPLATES = """
CREATE TEMPORARY TABLE texts (n bigint, agent_id uuid, kind text, title text, labels text,
                              told tsvector, contained tsvector)
"""
_RECORDS = f"""
WITH fresh AS MATERIALIZED (
    SELECT n, created_at,
           {crowd.ID.format(milliseconds="(extract(epoch FROM created_at) * 1000)::bigint")} AS id
      FROM generate_series(%(first)s::bigint, %(until)s::bigint) AS n
     CROSS JOIN LATERAL (SELECT %(newest)s::timestamptz - (%(last)s - n) * %(apart)s
                                                          * interval '1 ms' AS created_at) AS aged
), stored AS (
    INSERT INTO records (tenant_id, id, session_id, agent_id, principal, kind, title, labels_json,
                         occurred_at, bundle_sha256, bundle_size, key_id, signature, created_at)
    SELECT %(tenant)s, fresh.id, agent_id, agent_id, 'bench', kind, title, labels, created_at,
           sha256(uuid_send(fresh.id)), %(bytes)s, 'bench', decode(repeat('00', 64), 'hex'),
           created_at
      FROM fresh JOIN texts ON texts.n = fresh.n %% %(texts)s
), told AS (
    INSERT INTO record_words (tenant_id, record_id, words)
    SELECT %(tenant)s, fresh.id, told FROM fresh JOIN texts ON texts.n = fresh.n %% %(texts)s
), contained AS (
    INSERT INTO bundle_words (tenant_id, record_id, words)
    SELECT %(tenant)s, fresh.id, contained FROM fresh JOIN texts ON texts.n = fresh.n %% %(texts)s
)
INSERT INTO bundles (tenant_id, record_id, size, bytes)
SELECT %(tenant)s, fresh.id, %(bytes)s, decode(repeat('5a', %(bytes)s), 'hex') FROM fresh
"""
_INDEXED = """
INSERT INTO word_positions (tenant_id, source, through)
SELECT %(tenant)s, 'records', id FROM records ORDER BY id DESC LIMIT 1
"""
_AT_ONCE = 100_000
# A record every half minute: a million in a year.
_APART_MS = 30_000


@dataclass(frozen=True)
class Library:
    """A tenant with `size` records; `words` are the most frequent first."""

    tenant_id: UUID
    size: int
    words: Sequence[str]
    agents: Sequence[UUID]

    @property
    def caller(self) -> Caller:
        """A caller that may read all of it."""
        return Caller(self.tenant_id, ids.new(), Role.READ, None, "bench")

    def word(self, chance: random.Random) -> str:
        """Return a word as often as records hold it."""
        return chance.choices(self.words, cum_weights=_WEIGHTS)[0]


def make(settings: Settings, database: Database, size: int) -> Library:
    """Fill a tenant of its own with `size` records, the newest made now."""
    tenant_id, _ = tenants.create(database, settings.master_keys, "bench")
    with database.transaction(tenant_id) as session:
        lexemes = word_index.lexemes(session, settings.master_keys, tenant_id)
    library = Library(
        tenant_id,
        size,
        [f"w{n:05x}" for n in range(_VOCABULARY)],
        [ids.new() for _ in range(_AGENTS)],
    )
    with psycopg.connect(owner_url(settings), autocommit=True) as connection:
        connection.execute(_KEY)
        connection.execute(_PEOPLE, {"tenant": tenant_id, "ids": list(library.agents)})
        definitions = [_definition(connection, name) for name in _SLOW]
        for name in _SLOW:
            connection.execute(f"DROP INDEX {name}")
        _write(connection, library, lexemes)
        for definition in definitions:
            connection.execute(definition)
        connection.execute(_INDEXED, {"tenant": library.tenant_id})
        connection.execute("VACUUM ANALYZE")
    return library


def _write(
    connection: "psycopg.Connection[tuple[object, ...]]",
    library: Library,
    lexemes: Lexemes,
) -> None:
    connection.execute(_TEMPLATES)
    with connection.cursor().copy("COPY texts FROM STDIN") as copy:
        for row in _texts(library, lexemes):
            copy.write_row(row)
    connection.execute("ANALYZE texts")
    newest = connection.execute("SELECT clock_timestamp()").fetchone()
    assert newest is not None
    values = {
        "tenant": library.tenant_id,
        "newest": newest[0],
        "last": library.size,
        "apart": _APART_MS,
        "texts": _TEXTS,
        "bytes": _BUNDLE_BYTES,
    }
    for first in range(1, library.size + 1, _AT_ONCE):
        until = min(first + _AT_ONCE - 1, library.size)
        connection.execute(_RECORDS, values | {"first": first, "until": until})


def _texts(library: Library, lexemes: Lexemes) -> "list[tuple[object, ...]]":
    chance = random.Random(4711)
    rows: list[tuple[object, ...]] = []
    for n in range(_TEXTS):
        words = chance.choices(library.words, cum_weights=_WEIGHTS, k=_IN_TITLE + _IN_CONTENT)
        title, content = " ".join(words[:_IN_TITLE]), " ".join(words[_IN_TITLE:])
        kind, labels = _KINDS[n % len(_KINDS)], {"team": f"t{n % 20}"}
        agent_id = library.agents[n % _AGENTS]
        told = (title, kind, *labels.values())
        of_session = {"session_id": agent_id, "agent_id": agent_id}
        pairs = labels | search.facets(of_session | {"principal": "bench", "kind": kind})
        rows.append(
            (
                n,
                agent_id,
                kind,
                title,
                f'{{"team":"t{n % 20}"}}',
                lexemes.vector(taken_apart(told), pairs),
                lexemes.vector(taken_apart((*told, content)), pairs),
            )
        )
    return rows


def _definition(connection: "psycopg.Connection[tuple[object, ...]]", index: str) -> str:
    row = connection.execute("SELECT pg_get_indexdef(%s::regclass)", (index,)).fetchone()
    assert row is not None
    return str(row[0])
