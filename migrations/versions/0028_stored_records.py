"""How many records each tenant has stored, and the bytes of their bundles, counted as they come."""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

# Few rows, changed with every record: room in each page keeps the changes out of the index.
TABLE = """
SET LOCAL lock_timeout = '2s';
CREATE TABLE IF NOT EXISTS stored_records (
    tenant_id uuid NOT NULL,
    shard     smallint NOT NULL,
    records   bigint NOT NULL,
    bytes     bigint NOT NULL,
    PRIMARY KEY (tenant_id, shard)
) WITH (fillfactor = 50);
ALTER TABLE stored_records ENABLE ROW LEVEL SECURITY;
ALTER TABLE stored_records FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS stored_records_of_this_tenant ON stored_records;
CREATE POLICY stored_records_of_this_tenant ON stored_records USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""

# Sixteen rows a tenant, so that few writers wait for each other. A backend keeps to one of them:
# two transactions that write several times can then not wait for each other in a circle.
# A record outlives its bundle, so what goes takes its bytes along and not its record.
TRIGGERS = """
CREATE OR REPLACE FUNCTION count_stored_records() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    sign integer := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
    INSERT INTO stored_records AS s (tenant_id, shard, records, bytes)
    SELECT c.tenant_id, pg_backend_pid() % 16,
           CASE sign WHEN 1 THEN count(*) ELSE 0 END, sign * sum(c.size)
      FROM changed AS c GROUP BY c.tenant_id ORDER BY c.tenant_id
    ON CONFLICT (tenant_id, shard) DO UPDATE
       SET records = s.records + excluded.records, bytes = s.bytes + excluded.bytes;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER bundles_stored AFTER INSERT ON bundles
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_stored_records();
CREATE OR REPLACE TRIGGER bundles_gone AFTER DELETE ON bundles
    REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_stored_records();
"""


def upgrade() -> None:
    """Count what changes from now on, whichever release stores it; the next adds what was there."""
    for statements in (TABLE, TRIGGERS):
        op.execute(statements)
