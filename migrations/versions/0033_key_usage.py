"""When a key was used last."""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; null says that the key was not used since this release."""
    op.execute("SET LOCAL lock_timeout = '2s'")
    op.execute("ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS last_used_at timestamptz")
