"""Deliveries lose the index by event: each of a row's three writes had an entry in it."""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

# The release before reads an event's deliveries by it, and nothing else: until it is gone, that one
# question walks along the primary key from the event on.
DROP = """
SET LOCAL lock_timeout = '2s';
DROP INDEX IF EXISTS deliveries_event;
"""


def upgrade() -> None:
    """Drop the index with those of all partitions; their rows are not touched."""
    op.execute(DROP)
