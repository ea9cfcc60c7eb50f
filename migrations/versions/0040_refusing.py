"""What was sent to a webhook since its last success; a new webhook begins with one POST."""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

# The release before neither reads nor writes them: its successes leave them as they are, until the
# first success that this release records.
REFUSING = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE lanes
    ADD COLUMN IF NOT EXISTS unsuccessful_since timestamptz,
    ADD COLUMN IF NOT EXISTS unsuccessful_attempts bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS unsuccessful_deliveries bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS refused_status smallint,
    ALTER COLUMN concurrency SET DEFAULT 1;
"""


def upgrade() -> None:
    """Add the columns; the next outcomes fill them."""
    op.execute(REFUSING)
