"""A webhook can be held: its events are accepted and numbered, and sent once it is released."""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

HELD = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE lanes ADD COLUMN IF NOT EXISTS held_since timestamptz;
"""


def upgrade() -> None:
    """Add the column; a worker of the release before goes on sending to a webhook that is held."""
    op.execute(HELD)
