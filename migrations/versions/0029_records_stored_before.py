"""What was stored before anything counted it."""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

# One statement sees one moment, and in each moment the triggers have counted exactly what came and
# went since there are any: what is missing is what was there before. No lock is held meanwhile, and
# a second run finds nothing missing. Backends add to the shards 0 to 15.
WHAT_IS_MISSING = """
SELECT set_config('app.every_tenant', 'on', true);
INSERT INTO stored_records AS s (tenant_id, shard, records, bytes)
SELECT tenant_id, 16, sum(records), sum(bytes)
  FROM (SELECT tenant_id, count(*) AS records, 0 AS bytes FROM records GROUP BY tenant_id
        UNION ALL
        SELECT tenant_id, 0, sum(size) FROM bundles GROUP BY tenant_id
        UNION ALL
        SELECT tenant_id, -sum(records), -sum(bytes) FROM stored_records GROUP BY tenant_id) AS part
 GROUP BY tenant_id
HAVING sum(records) <> 0 OR sum(bytes) <> 0
ON CONFLICT (tenant_id, shard) DO UPDATE
   SET records = s.records + excluded.records, bytes = s.bytes + excluded.bytes;
SELECT set_config('app.every_tenant', '', true);
"""


def upgrade() -> None:
    """Add it, while requests go on."""
    op.execute(WHAT_IS_MISSING)
