"""Checkpoints that are signed, and not published before a quorum of witnesses has cosigned them."""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

# What is published has its note in `note`, as before. No constraint ties the two: a release before
# this one publishes without looking at these.
COLUMNS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE checkpoints
    ADD COLUMN IF NOT EXISTS unpublished_note bytea,
    ADD COLUMN IF NOT EXISTS signed_at        timestamptz;
"""


def upgrade() -> None:
    """Add the columns; the release before neither writes nor misses them."""
    op.execute(COLUMNS)
