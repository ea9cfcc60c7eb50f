"""How often a job's worker died with it, and what is known under a seal alone."""

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

# When every chain was verified last, as only who holds MASTER_KEYS can say it.
NOTES = """
CREATE TABLE IF NOT EXISTS sealed_notes (
    name   text PRIMARY KEY,
    sealed bytea NOT NULL
);
"""


def upgrade() -> None:
    """The release before neither counts nor resets, and knows of no notes."""
    for statements in (LOST, NOTES):
        op.execute(statements)
