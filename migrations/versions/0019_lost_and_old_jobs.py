"""How often a job's worker died with it."""

from alembic import op

revision = "0019"
down_revision = "0017"
branch_labels = None
depends_on = None

# Who cannot have the lock within two seconds has nobody else queue behind for longer.
LOST = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE jobs ADD COLUMN IF NOT EXISTS claims_lost bigint NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    """The release before neither counts nor resets it."""
    op.execute(LOST)
