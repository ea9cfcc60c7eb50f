"""Revoked signing keys: since when a key's signatures count for nothing, and why."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

# A backup holds the table for as long as it takes, and who signs would queue behind this.
COLUMNS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE signing_keys
    ADD COLUMN IF NOT EXISTS revoked_at timestamptz,
    ADD COLUMN IF NOT EXISTS revocation_reason text,
    DROP CONSTRAINT IF EXISTS signing_keys_revoked,
    ADD CONSTRAINT signing_keys_revoked CHECK (
        (revoked_at IS NULL) = (revocation_reason IS NULL)
        AND (revoked_at IS NULL OR retired_at IS NOT NULL));
"""


def upgrade() -> None:
    """Add the two columns; a revoked key never signs, so it is retired as well."""
    op.execute(COLUMNS)
