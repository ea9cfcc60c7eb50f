"""Jobs that are lost, listed and pruned, and what is known under a seal alone."""

from alembic import op
from sqlalchemy import text

revision = "0018"
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

# A page of one kind, and what has outlived its history.
INDEXES = {
    "jobs_of_kind": "jobs (tenant_id, kind, id)",
    "jobs_finished": "jobs (finished_at) WHERE finished_at IS NOT NULL",
}
# One whose building was interrupted is no index, and keeps its name.
INVALID = text("""
SELECT FROM pg_index WHERE indexrelid = to_regclass(:name) AND NOT indisvalid
""")


def upgrade() -> None:
    """Add what is small, then build the indexes outside any transaction, as in 0014.

    Killed on the way, the next run begins anew. The release before neither counts what is lost nor
    resets it, and knows of no notes.
    """
    for statements in (LOST, NOTES):
        op.execute(statements)
    with op.get_context().autocommit_block():
        for name, what in INDEXES.items():
            if op.get_bind().execute(INVALID, {"name": name}).first() is not None:
                op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {what}")
