"""How many POSTs each lane may have out, by how its receiver behaves, and how soon it answers."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

# Who cannot have the lock within two seconds has nobody else queue behind for longer.
CONCURRENCY = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE lanes
    ADD COLUMN IF NOT EXISTS concurrency smallint NOT NULL DEFAULT 2,
    ADD COLUMN IF NOT EXISTS halved_at timestamptz,
    ADD COLUMN IF NOT EXISTS latency_ms real;
"""


def upgrade() -> None:
    """Add the columns; every lane begins as a new one, and finds its concurrency in some answers.

    The release before neither reads nor writes them: it goes by `lane_slots` alone, as this one
    does in the end.
    """
    op.execute(CONCURRENCY)
