"""${message}."""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply; must be safe while the version before is still running."""
    ${upgrades if upgrades else "pass"}
