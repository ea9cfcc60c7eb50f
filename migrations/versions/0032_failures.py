"""Why a delivery's last attempt failed stands in its row; failures and jobs have their indexes."""

from alembic import op
from sqlalchemy import text

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

COLUMNS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE deliveries
    ADD COLUMN IF NOT EXISTS outcome     text,
    ADD COLUMN IF NOT EXISTS status_code smallint,
    ADD COLUMN IF NOT EXISTS failure     bigint;
"""

# A delivery that succeeds at its first attempt has an entry in neither.
INDEXES = {
    "deliveries_unhappy": (
        "(tenant_id, status, id) WHERE status IN ('failed', 'cancelled', 'retrying')"
    ),
    "deliveries_of_job": "(tenant_id, job_id, id) WHERE job_id IS NOT NULL",
}
PARTITIONS = text("""
SELECT inhrelid::regclass::text FROM pg_inherits
 WHERE inhparent = 'deliveries'::regclass ORDER BY inhrelid::regclass::text
""")
ATTACHED = text("""
SELECT FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid
 WHERE inhparent = to_regclass(:parent) AND indrelid = to_regclass(:partition)
""")
# One whose building was interrupted is no index, and keeps its name.
INVALID = text("SELECT FROM pg_index WHERE indexrelid = to_regclass(:name) AND NOT indisvalid")


def upgrade() -> None:
    """Add the columns, then build the indexes week by week, outside any transaction.

    Killed on the way, the next run goes on. The release before writes none of the columns: its
    failures are in a group of their own.
    """
    op.execute(COLUMNS)
    with op.get_context().autocommit_block():
        for name, what in INDEXES.items():
            op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON ONLY deliveries {what}")
            for partition in op.get_bind().scalars(PARTITIONS).all():
                _build(name, partition, what)


def _build(parent: str, partition: str, what: str) -> None:
    """Index one week without keeping writers out, unless it has its index."""
    names = {"parent": parent, "partition": partition}
    if op.get_bind().execute(ATTACHED, names).first() is not None:
        return
    name = f"{partition}_{parent.removeprefix('deliveries_')}"
    if op.get_bind().execute(INVALID, {"name": name}).first() is not None:
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {partition} {what}")
    op.execute(f"ALTER INDEX {parent} ATTACH PARTITION {name}")
