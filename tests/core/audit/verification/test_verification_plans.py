"""What a verification looks up is found by its whole key, whatever the statistics say."""

import json
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from app.core.verification import anchored_heads
from app.database import Database, cursor

MANY = 2_000
TENANT = "'00000000-0000-7000-8000-000000000001'"
FILL = f"""
INSERT INTO tenants (id, name, chain_salt, chain_seal)
VALUES ({TENANT}, 'one', sha256(''), '') ON CONFLICT DO NOTHING;
INSERT INTO audit_heads VALUES ({TENANT}, 1, sha256('')) ON CONFLICT DO NOTHING;
INSERT INTO audit_entries (tenant_id, seq, body, hash, action, at)
SELECT {TENANT}, n, '', sha256(n::text::bytea), 'a', now() FROM generate_series({{}}, {{}}) AS n;
INSERT INTO audit_anchors (tenant_id, seq, hash, at, leaf_hash)
SELECT tenant_id, seq, hash, at, hash FROM audit_entries ON CONFLICT DO NOTHING;
INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)
SELECT gen_random_uuid(), hash, '', 1, seq FROM audit_entries ON CONFLICT DO NOTHING;
"""
TABLES = ("tenants", "audit_heads", "audit_entries", "audit_anchors", "log_leaves")
LEAVES = """
SELECT array_agg(sha256('audit-chain:'::bytea || sha256(''))), array_agg(seq), array_agg(hash),
       array_agg(hash) FROM (SELECT seq, hash FROM audit_entries ORDER BY seq LIMIT 500) AS few
"""


@pytest.fixture
def grown(fresh_database: Database, admin_engine: Engine) -> Database:
    """A database that was analysed when each table had one row."""
    url = admin_engine.url.set(database=fresh_database.engine.url.database)
    owner: Engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        connection.execute(text("SET session_replication_role = replica"))
        connection.exec_driver_sql(FILL.format(1, 1))
        for table in TABLES:
            connection.execute(text(f"VACUUM ANALYZE {table}"))
            connection.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = off)"))
        connection.exec_driver_sql(FILL.format(2, MANY))
    owner.dispose()
    return fresh_database


def rows_met(node: dict[str, Any]) -> float:
    """Return how many rows the nodes of a plan met, over all their loops."""
    removed = (node.get(f"Rows Removed by {by}", 0) for by in ("Filter", "Join Filter"))
    met = (node["Actual Rows"] + sum(removed)) * node["Actual Loops"]
    return float(met + sum(map(rows_met, node.get("Plans", ()))))


def test_heads_and_anchors_are_looked_up_by_their_keys(grown: Database) -> None:
    with grown.across_tenants() as session:
        leaves: Any = cursor(session).execute(LEAVES.encode()).fetchone()
        cursor(session).execute(anchored_heads.PLAN, prepare=False)
        for query, values, found in (
            (anchored_heads._HELD, leaves, 500),
            (anchored_heads._ANCHORS, (TENANT.strip("'"), 1), 500),
        ):
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".encode()
            (plan,) = cursor(session).execute(explain, values).fetchone() or ([],)
            # Each node of the plan passes on what those below it have found.
            assert rows_met(plan[0]["Plan"]) < 20 * found, json.dumps(plan)[:2000]
