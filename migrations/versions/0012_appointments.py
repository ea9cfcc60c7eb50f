"""Appointments: the seal under MASTER_KEYS of whoever began a successor of the log."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no released version has begun a successor."""
    op.execute("ALTER TABLE log_generations ADD COLUMN appointment bytea")
