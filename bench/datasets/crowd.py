"""Tenants, webhooks and waiting deliveries by the million, written straight into a database."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy.orm import Session

from app import ids
from app.core.delivery.lanes import lanes
from app.database import Database

_AT_ONCE = 100_000
# The newest tenth of what waits is not numbered yet.
_NUMBERED_SHARE = 0.9
_SLOTS = 4

_TENANTS = """
INSERT INTO tenants (id, name) SELECT id, 'bench' FROM unnest(%s::uuid[]) AS t (id)
    ON CONFLICT DO NOTHING
"""
_WEBHOOKS = """
INSERT INTO webhooks (tenant_id, id, url, max_in_flight, status, sealed_secrets, sealed_target)
SELECT tenant_id, id, 'http://127.0.0.1:9/', %s, 'enabled', '', ''
  FROM unnest(%s::uuid[], %s::uuid[]) AS fresh (tenant_id, id)
"""
_LANES = """
INSERT INTO lanes (tenant_id, webhook_id, due_at)
SELECT tenant_id, id, clock_timestamp() FROM webhook_lanes WHERE id = ANY (%s)
"""
_SESSION = """
WITH agent AS (
    INSERT INTO agents (tenant_id, id, name) VALUES (%(tenant)s, %(id)s, 'bench')
)
INSERT INTO sessions (tenant_id, id, agent_id, principal, status)
VALUES (%(tenant)s, %(id)s, %(id)s, 'bench', 'open')
"""

# A version 7 UUID of so many milliseconds since the epoch; see `app/ids.py`.
ID = """
encode(substr(int8send({milliseconds}), 3) || '\\x7000'::bytea
       || substr(uuid_send(gen_random_uuid()), 9), 'hex')::uuid
"""
_WAITING = f"""
WITH fresh AS MATERIALIZED (
    SELECT tenant_id, n, {ID.format(milliseconds="%(began)s::bigint + n / 100")} AS event_id
      FROM unnest(%(tenants)s::uuid[]) AS t (tenant_id)
     CROSS JOIN generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), stored AS (
    INSERT INTO stored_events (tenant_id, id, type, payload, decisions)
    SELECT tenant_id, event_id, 'finding.created', %(payload)s, '' FROM fresh
)
INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                             fresh, sequence, feed_sequence, next_attempt_at)
SELECT fresh.tenant_id, {ID.format(milliseconds="%(began)s::bigint + n / 100")}, lanes.webhook_id,
       fresh.event_id, 'finding.created', 'event', 1, n > %(numbered)s,
       CASE WHEN n <= %(numbered)s THEN n END, CASE WHEN n <= %(numbered)s THEN n END,
       clock_timestamp()
  FROM fresh JOIN lanes USING (tenant_id)
"""
_NEXT = """
UPDATE lanes SET next_sequence = %(numbered)s + 1, events_open = %(numbered)s - events_succeeded,
                 due_at = clock_timestamp(), open_from = DEFAULT
"""


@dataclass
class Crowd:
    """Tenants with the same number of webhooks each, and as many deliveries waiting on each."""

    lanes: list[tuple[UUID, UUID]]
    session_id: UUID
    waiting: int = 0

    @property
    def tenant_id(self) -> UUID:
        """The tenant that has a session for findings."""
        return self.lanes[0][0]


def make(
    admin_url: str, *, tenants: int = 1, webhooks: int, tenant_id: UUID | None = None
) -> Crowd:
    """Make webhooks on which nothing waits, for new tenants or for one that there is."""
    tenant_ids = [tenant_id] if tenant_id else [ids.new() for _ in range(tenants)]
    pairs = [(tenant_id, ids.new()) for tenant_id in tenant_ids for _ in range(webhooks)]
    session_id = ids.new()
    with psycopg.connect(admin_url) as connection:
        connection.execute(_TENANTS, (tenant_ids,))
        connection.execute(_WEBHOOKS, (_SLOTS, *map(list, zip(*pairs, strict=True))))
        connection.execute(_LANES, ([pair[1] for pair in pairs],))
        connection.execute(_SESSION, {"tenant": tenant_ids[0], "id": session_id})
    return Crowd(pairs, session_id)


def let_wait(crowd: Crowd, admin_url: str, database: Database, waiting: int) -> None:
    """Add deliveries until `waiting` have been added to each lane, most of them numbered."""
    for tenant_id, webhook_id in crowd.lanes if crowd.waiting else ():
        with database.transaction(tenant_id) as session:
            number_all(session, tenant_id, webhook_id)
    # Ids must lie in this week's partition, and be older than whatever is made from now on.
    values: dict[str, Any] = {
        "tenants": list({tenant_id for tenant_id, _ in crowd.lanes}),
        "payload": b"x" * 100,
        "numbered": int(waiting * _NUMBERED_SHARE),
        "began": int(ids.made_at(ids.new()).timestamp() * 1000) - waiting // 100,
    }
    with psycopg.connect(admin_url, autocommit=True) as connection:
        for first in range(crowd.waiting + 1, waiting + 1, _AT_ONCE):
            bounds = {"first": first, "last": min(first + _AT_ONCE - 1, waiting)}
            connection.execute(_WAITING, values | bounds)
        connection.execute(_NEXT, values)
        connection.execute("VACUUM ANALYZE")
    crowd.waiting = waiting


def number_all(session: Session, tenant_id: UUID, webhook_id: UUID) -> None:
    """Number whatever waits for a number on one lane."""
    while lanes.number(session, tenant_id, webhook_id):
        pass
