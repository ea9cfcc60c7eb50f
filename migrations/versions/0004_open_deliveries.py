"""Open deliveries are counted as they open and close, so that nobody has to scan a million."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE lanes
    ADD COLUMN events_open  bigint NOT NULL DEFAULT 0,
    ADD COLUMN replays_open bigint NOT NULL DEFAULT 0,
    ADD COLUMN tests_open   bigint NOT NULL DEFAULT 0;
"""

# An event counts from when it has its number: before, nobody holds the lane's lock for it.
_OPEN = "finished_at IS NULL AND (sequence IS NOT NULL OR kind <> 'event')"
_APPEARED = f"SELECT tenant_id, webhook_id, kind, 1 AS n FROM fresh WHERE {_OPEN}"
_VANISHED = f"SELECT tenant_id, webhook_id, kind, -1 AS n FROM stale WHERE {_OPEN}"

# The rows count themselves, whatever statement of whatever version changes them. Once for each
# statement: a change of the lane for each of its rows would cost more than the rows.
_COUNT = """
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE lanes AS l
       SET events_open = l.events_open + changed.events,
           replays_open = l.replays_open + changed.replays,
           tests_open = l.tests_open + changed.tests
      FROM (SELECT tenant_id, webhook_id,
                   coalesce(sum(n) FILTER (WHERE kind = 'event'), 0) AS events,
                   coalesce(sum(n) FILTER (WHERE kind = 'replay'), 0) AS replays,
                   coalesce(sum(n) FILTER (WHERE kind = 'test'), 0) AS tests
              FROM ({rows}) AS counted
             GROUP BY tenant_id, webhook_id) AS changed
     WHERE l.tenant_id = changed.tenant_id AND l.webhook_id = changed.webhook_id
       AND (changed.events <> 0 OR changed.replays <> 0 OR changed.tests <> 0);
    RETURN NULL;
END $$;
CREATE TRIGGER {name} AFTER {operation} ON deliveries REFERENCING {tables}
    FOR EACH STATEMENT EXECUTE FUNCTION {name}();
"""
COUNTING = (
    ("INSERT", "NEW TABLE AS fresh", _APPEARED),
    ("UPDATE", "NEW TABLE AS fresh OLD TABLE AS stale", f"{_APPEARED} UNION ALL {_VANISHED}"),
    ("DELETE", "OLD TABLE AS stale", _VANISHED),
)

# Rows without a number come by the hundred thousand before statistics tell of them, and are gone
# before these tell of that. So the planner would sort all of them to find the first, or read every
# row of a week to find none; its settings here hold for what each function asks alone. STABLE: they
# see the same moment as the statement that asks.
_BY_INDEX = """
STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET max_parallel_workers_per_gather = 0
"""
UNNUMBERED = f"""
CREATE FUNCTION count_unnumbered(tenant uuid, webhook uuid) RETURNS bigint
LANGUAGE sql {_BY_INDEX} AS $$
    SELECT count(*) FROM deliveries
     WHERE tenant_id = tenant AND webhook_id = webhook AND sequence IS NULL AND kind = 'event'
$$;

CREATE FUNCTION first_unnumbered(tenant uuid, webhook uuid, at_most bigint) RETURNS SETOF uuid
LANGUAGE sql {_BY_INDEX} AS $$
    SELECT id FROM deliveries
     WHERE tenant_id = tenant AND webhook_id = webhook AND sequence IS NULL AND kind = 'event'
     ORDER BY id LIMIT at_most
$$;

-- One index probe a lane, however many rows wait in each (a "loose index scan").
CREATE FUNCTION unnumbered_lanes()
RETURNS TABLE (tenant_id uuid, webhook_id uuid, oldest timestamptz)
LANGUAGE sql {_BY_INDEX} AS $$
    WITH RECURSIVE unnumbered AS (
        (SELECT d.tenant_id, d.webhook_id, d.created_at FROM deliveries AS d
          WHERE d.sequence IS NULL AND d.kind = 'event'
          ORDER BY d.tenant_id, d.webhook_id, d.id LIMIT 1)
        UNION ALL
        SELECT beyond.tenant_id, beyond.webhook_id, beyond.created_at
          FROM unnumbered AS u
         CROSS JOIN LATERAL (
            SELECT d.tenant_id, d.webhook_id, d.created_at FROM deliveries AS d
             WHERE d.sequence IS NULL AND d.kind = 'event'
               AND (d.tenant_id, d.webhook_id) > (u.tenant_id, u.webhook_id)
             ORDER BY d.tenant_id, d.webhook_id, d.id LIMIT 1) AS beyond
    )
    SELECT tenant_id, webhook_id, created_at FROM unnumbered
$$;
"""

# The triggers' lock keeps writers out until the commit, so nothing is counted twice or missed.
# Row-level security binds the owner too: without the setting it would see, and count, nothing.
BACKFILL = f"""
SELECT set_config('app.every_tenant', 'on', true);
UPDATE lanes AS l
   SET events_open = found.events, replays_open = found.replays, tests_open = found.tests
  FROM (SELECT tenant_id, webhook_id,
               count(*) FILTER (WHERE kind = 'event') AS events,
               count(*) FILTER (WHERE kind = 'replay') AS replays,
               count(*) FILTER (WHERE kind = 'test') AS tests
          FROM deliveries WHERE {_OPEN}
         GROUP BY tenant_id, webhook_id) AS found
 WHERE l.tenant_id = found.tenant_id AND l.webhook_id = found.webhook_id;
SELECT set_config('app.every_tenant', '', true);
"""


def upgrade() -> None:
    """Apply; safe while the version before is running: its rows count themselves as well."""
    op.execute(COLUMNS)
    for operation, tables, rows in COUNTING:
        name = f"count_open_after_{operation.lower()}"
        op.execute(_COUNT.format(name=name, operation=operation, tables=tables, rows=rows))
    op.execute(UNNUMBERED)
    op.execute(BACKFILL)
