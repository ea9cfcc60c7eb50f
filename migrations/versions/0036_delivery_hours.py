"""What each webhook was sent is counted by the hour, as numbers are given and outcomes recorded."""

from alembic import op

from app import sql

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

# An hour's row is changed with each batch of outcomes: room in its page keeps the changes out of
# the index. A tenant's hours lie side by side, for charts of all its webhooks.
TABLES = """
SET LOCAL lock_timeout = '2s';
CREATE TABLE IF NOT EXISTS delivery_hours (
    tenant_id     uuid NOT NULL,
    at            timestamptz NOT NULL,
    webhook_id    uuid NOT NULL,
    accepted      integer NOT NULL DEFAULT 0,
    attempted     integer NOT NULL DEFAULT 0,
    succeeded     integer NOT NULL DEFAULT 0,
    failed        integer NOT NULL DEFAULT 0,
    retried       integer NOT NULL DEFAULT 0,
    within_5_ms   integer NOT NULL DEFAULT 0,
    within_10_ms  integer NOT NULL DEFAULT 0,
    within_25_ms  integer NOT NULL DEFAULT 0,
    within_50_ms  integer NOT NULL DEFAULT 0,
    within_100_ms integer NOT NULL DEFAULT 0,
    within_250_ms integer NOT NULL DEFAULT 0,
    within_500_ms integer NOT NULL DEFAULT 0,
    within_1_s    integer NOT NULL DEFAULT 0,
    within_2_s    integer NOT NULL DEFAULT 0,
    within_5_s    integer NOT NULL DEFAULT 0,
    within_10_s   integer NOT NULL DEFAULT 0,
    beyond_10_s   integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, at, webhook_id)
) WITH (fillfactor = 70);
-- Sums over webhooks, of hours that are over.
CREATE TABLE IF NOT EXISTS tenant_hours (
    LIKE delivery_hours INCLUDING DEFAULTS,
    PRIMARY KEY (tenant_id, at)
);
ALTER TABLE tenant_hours DROP COLUMN IF EXISTS webhook_id;
"""

WALL = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS {table}_of_this_tenant ON {table};
CREATE POLICY {table}_of_this_tenant ON {table} USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""


def upgrade() -> None:
    """Add the tables, then have claims count; what came before has no hour.

    A worker of the release before claims by the same function, and counts no outcome.
    """
    op.execute(TABLES)
    for table in ("delivery_hours", "tenant_hours"):
        op.execute(WALL.format(table=table))
    for function in ("accepted_hour", "claim_deliveries"):
        op.execute(sql.text(function))
