"""The index by which a digest finds its findings, built while everybody goes on writing."""

from alembic import op
from sqlalchemy import text

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# One whose building was interrupted is no index, and keeps its name.
INVALID = text("""
SELECT FROM pg_index WHERE indexrelid = to_regclass('findings_digest') AND NOT indisvalid
""")
DROP = "DROP INDEX CONCURRENTLY IF EXISTS findings_digest"
BUILD = """
CREATE INDEX CONCURRENTLY IF NOT EXISTS findings_digest
    ON findings (tenant_id, digest_id, id) WHERE digest_id IS NOT NULL
"""


def upgrade() -> None:
    """Build the index outside any transaction; killed on the way, the next run begins anew."""
    with op.get_context().autocommit_block():
        if op.get_bind().execute(INVALID).first() is not None:
            op.execute(DROP)
        op.execute(BUILD)
