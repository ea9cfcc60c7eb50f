"""One tenant with a long past in every table that the console reads.

Its records and deliveries are those of `library` and `past`; a finding in four records; keys that
keys minted, their sessions, jobs and mail by the thousand; an audit chain with anchors.
"""

import json
from dataclasses import dataclass
from uuid import UUID

import psycopg

from app import ids
from app.api.http.answers import encode
from app.core import finding_search, word_index
from app.core.log.head_store import FileHead
from app.core.log.sequencer import Sequencer
from app.core.replay import bulk_replay
from app.core.replay.replay_deliveries import Pace, Plan
from app.core.replay.replay_selection import Selection, Wanted
from app.core.webhooks import receiver_check, webhook_secrets
from app.core.webhooks.webhook_secrets import Secret
from app.database import Database, cursor, database_now
from app.lib.crypto import api_keys, webhook_signing
from app.settings import Settings
from bench.datasets import chains, library, past
from bench.datasets.library import Library
from bench.datasets.past import Past
from bench.lab import Lab, owner_url
from bench.scale import Scale

_BROKEN = 8
_PAYLOAD = encode({"type": "finding.created", "data": {"rule": "r1", "detail": "x" * 300}})
_SEVERITIES = ("info", "low", "medium", "high", "critical")
_RULES = 10

_FINDINGS = """
INSERT INTO findings (tenant_id, id, session_id, record_id, agent_id, principal, rule, severity,
                      title, detail, created_at)
SELECT tenant_id, id, session_id, id, agent_id, principal, 'r' || n %% %(rules)s,
       (%(severities)s::text[])[1 + n %% %(of)s], title, 'It was found by the bench.', created_at
  FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM records) AS r WHERE n %% 4 = 0
"""
_KEYS = """
INSERT INTO api_keys (tenant_id, id, name, role, digest, created_by, last_used_at)
SELECT %(tenant)s, id, 'deploy ' || n, 'admin', sha256(uuid_send(id)),
       CASE WHEN n > 1 THEN (%(ids)s::uuid[])[1 + n / 4] END, clock_timestamp()
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS fresh (id, n)
"""
_SESSIONS = """
INSERT INTO console_sessions (tenant_id, id, digest, api_key_id, expires_at)
SELECT %(tenant)s, id, sha256(int8send(n)), (%(ids)s::uuid[])[1 + n %% 10],
       clock_timestamp() + interval '1 day'
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS fresh (id, n)
"""
_JOBS = """
INSERT INTO jobs (tenant_id, id, kind, args, status, attempts, progress, error, finished_at)
SELECT %(tenant)s, id, (%(kinds)s::text[])[1 + n %% 2], (%(args)s::text[])[1 + n %% 2],
       CASE WHEN n %% 5 = 0 THEN 'dead' ELSE 'succeeded' END, 1, (%(progress)s::text[])[1 + n %% 2],
       CASE WHEN n %% 5 = 0 THEN 'The webhook was deleted.' END, clock_timestamp()
  FROM unnest(%(ids)s::uuid[]) WITH ORDINALITY AS fresh (id, n)
"""
_DIGESTS = """
INSERT INTO digests (tenant_id, id, series, status, findings, data_at, sent_at)
SELECT %(tenant)s, id, %(tenant)s, 'sent', 12, clock_timestamp(), clock_timestamp()
  FROM unnest(%(ids)s::uuid[]) AS fresh (id)
"""


@dataclass(frozen=True)
class Company:
    """The tenant, with a key of it and the newest of its jobs of two kinds."""

    books: Library
    past: Past
    key: str
    key_id: UUID
    replay: UUID
    check: UUID

    @property
    def tenant_id(self) -> UUID:
        """The tenant."""
        return self.books.tenant_id


def make(lab: Lab, settings: Settings, database: Database, scale: Scale) -> Company:
    """Fill a database with one tenant."""
    books = library.make(settings, database, scale.records)
    more = past.More(books.tenant_id, _PAYLOAD, _BROKEN)
    made = past.make(settings, database, scale.records, scale.webhooks, more)
    _give_secrets(settings, database, made)
    sequencer = Sequencer(
        database, settings.master_keys, "bench.test/log", FileHead(lab.folder / "company-head")
    )
    chains.grow(settings, database, sequencer, books.tenant_id, scale.entries, scale.anchors)
    with psycopg.connect(owner_url(settings), autocommit=True) as connection:
        _find(connection)
        _index(database, books.tenant_id)
        keys = [ids.new() for _ in range(scale.keys)]
        of = {"tenant": books.tenant_id, "ids": keys}
        connection.execute(_KEYS, of)
        connection.execute(_SESSIONS, of)
        connection.execute(_DIGESTS, of)
        jobs = _work(connection, database, made, scale.keys)
        key = api_keys.new()
        connection.execute(
            "UPDATE api_keys SET digest = %s WHERE id = %s", (api_keys.digest(key), keys[-1])
        )
        connection.execute("VACUUM ANALYZE")
    return Company(books, made, key, keys[0], *jobs)


def _find(connection: "psycopg.Connection[tuple[object, ...]]") -> None:
    values = {"severities": list(_SEVERITIES), "of": len(_SEVERITIES), "rules": _RULES}
    connection.execute(_FINDINGS, values)


def _index(database: Database, tenant_id: UUID) -> None:
    """Index the findings, as the worker does."""
    indexed = 1
    while indexed:
        with database.transaction(tenant_id) as session:
            indexed = word_index.index_piece(session, finding_search.SOURCE, tenant_id, ids.new())


def _work(
    connection: "psycopg.Connection[tuple[object, ...]]",
    database: Database,
    made: Past,
    many: int,
) -> tuple[UUID, UUID]:
    """Make jobs that ended, a fifth of them dead; return the newest replay and check."""
    with database.transaction(made.tenant_id) as session:
        now = database_now(session)
    plan = Plan(Selection(None, Wanted(), now), tuple(made.webhooks), Pace(rate=50))
    progress = {"selected": 25_000, "sent": 25_000, "succeeded": 24_000, "failed_same": 1_000}
    jobs = [ids.new() for _ in range(many)]
    connection.execute(
        _JOBS,
        {
            "tenant": made.tenant_id,
            "ids": jobs,
            "kinds": [bulk_replay.KIND, receiver_check.KIND],
            "args": [
                json.dumps(plan.to_args()),
                json.dumps({"webhook_id": ids.text("whk", made.webhooks[0])}),
            ],
            "progress": [json.dumps(progress), None],
        },
    )
    # The first of two kinds is that of even ordinals, and the list begins with the first.
    return jobs[1::2][-1], jobs[::2][-1]


def _give_secrets(settings: Settings, database: Database, made: Past) -> None:
    """Seal a secret for each webhook: those of a crowd have none."""
    with database.transaction(made.tenant_id) as session:
        for one in made.webhooks:
            fresh = [Secret(webhook_signing.new_secret())]
            sealed = webhook_secrets.seal_secrets(settings.master_keys, made.tenant_id, one, fresh)
            cursor(session).execute(
                "UPDATE webhooks SET sealed_secrets = %s WHERE id = %s", (sealed, one)
            )
