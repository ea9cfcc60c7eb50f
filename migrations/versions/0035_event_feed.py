"""Each event says which transaction wrote it, so that a reader misses none that commits late."""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, null in what there is: that was committed before anybody asks.

    The default is set apart: a new column with one that is not constant would rewrite the table.
    """
    op.execute("SET LOCAL lock_timeout = '2s'")
    op.execute("ALTER TABLE events ADD COLUMN IF NOT EXISTS written_by bigint")
    op.execute(
        "ALTER TABLE events ALTER COLUMN written_by"
        " SET DEFAULT (pg_current_xact_id()::text)::bigint"
    )
