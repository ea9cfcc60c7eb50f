"""What waits for its next attempt comes forward once its receiver takes deliveries again."""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

# No index holds any of these, and none has a value in a row that was delivered at once.
COLUMNS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE lanes
    ADD COLUMN IF NOT EXISTS recovering        smallint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS recovering_since  timestamptz,
    ADD COLUMN IF NOT EXISTS recovered_through timestamptz,
    ADD COLUMN IF NOT EXISTS receiver_since    timestamptz;
ALTER TABLE deliveries
    ADD COLUMN IF NOT EXISTS unscheduled  smallint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS attempted_at timestamptz,
    ADD COLUMN IF NOT EXISTS asked_until  timestamptz;
"""


def upgrade() -> None:
    """Add the columns; the release before neither writes nor misses them."""
    op.execute(COLUMNS)
