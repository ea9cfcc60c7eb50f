"""Counters of the whole stack, and what its gauges are read from."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Few rows, changed every few seconds: room in each page keeps the changes out of the index.
COUNTERS = """
CREATE TABLE counters (
    tenant_id uuid NOT NULL,
    name      text NOT NULL,
    labels    text NOT NULL,
    value     double precision NOT NULL,
    PRIMARY KEY (tenant_id, name, labels)
) WITH (fillfactor = 50);

ALTER TABLE counters ENABLE ROW LEVEL SECURITY;
ALTER TABLE counters FORCE ROW LEVEL SECURITY;
CREATE POLICY counters_of_this_tenant ON counters USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""

# Each holds only the few rows that a gauge counts, however many the table has.
GAUGES = """
CREATE INDEX webhooks_disabled ON webhooks (tenant_id)
    WHERE status = 'disabled' AND deleted_at IS NULL;
CREATE INDEX lanes_paused ON lanes (paused_until) WHERE paused_until IS NOT NULL;
CREATE INDEX jobs_dead ON jobs (tenant_id) WHERE status = 'dead';
"""


def upgrade() -> None:
    """Create the table and the indexes."""
    op.execute(COUNTERS)
    op.execute(GAUGES)
