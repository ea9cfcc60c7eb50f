"""Of the failed and the cancelled, those whose event a replay has delivered are counted."""

from alembic import op
from sqlalchemy import text

from app import sql

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

COLUMNS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE lanes
    ADD COLUMN IF NOT EXISTS failed_arrived    bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS cancelled_arrived bigint NOT NULL DEFAULT 0;
"""
# Row-level security binds the owner too: without the setting it would see no lane.
EVERY_TENANT = "SELECT set_config('app.every_tenant', 'on', true)"
REPLAYED = "SELECT tenant_id, webhook_id FROM lanes WHERE replays_accepted > 0 ORDER BY 1, 2"
# Rows end under their lane's lock, so the count that follows it, with a snapshot of its own, is
# exact, and is the same when it is made again.
COUNT = """
DO $$
BEGIN
    PERFORM set_config('app.every_tenant', 'on', true);
    PERFORM FROM lanes WHERE tenant_id = '{tenant}' AND webhook_id = '{webhook}'
        FOR NO KEY UPDATE;
    UPDATE lanes AS l
       SET failed_arrived = found.failed, cancelled_arrived = found.cancelled
      FROM (SELECT count(*) FILTER (WHERE d.status = 'failed') AS failed,
                   count(*) FILTER (WHERE d.status = 'cancelled') AS cancelled
              FROM deliveries AS d
             WHERE d.tenant_id = '{tenant}' AND d.webhook_id = '{webhook}'
               AND d.status IN ('failed', 'cancelled') AND d.kind = 'event'
               AND d.event_id IN (
                    SELECT r.event_id FROM deliveries AS r
                     WHERE r.tenant_id = '{tenant}' AND r.webhook_id = '{webhook}'
                       AND r.kind = 'replay' AND r.status = 'succeeded')) AS found
     WHERE l.tenant_id = '{tenant}' AND l.webhook_id = '{webhook}';
END $$;
"""


def upgrade() -> None:
    """Add the counters, which a trigger keeps, then count what is stored, a lane a transaction.

    Killed on the way, the next run counts all lanes again.
    """
    op.execute(COLUMNS)
    op.execute(sql.text("count_open_after_update"))
    op.execute(EVERY_TENANT)
    replayed = op.get_bind().execute(text(REPLAYED)).all()
    with op.get_context().autocommit_block():
        for tenant, webhook in replayed:
            op.execute(COUNT.format(tenant=tenant, webhook=webhook))
