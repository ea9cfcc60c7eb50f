"""Master keys: which of them the service was given, by their ids, until nothing is under them."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# The id is the beginning of the key's SHA-256, as everything sealed under it names it: no secret.
KEYS = """
CREATE TABLE master_keys (
    key_id      text PRIMARY KEY CHECK (key_id ~ '^[0-9a-f]{8}$'),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    in_front_at timestamptz,
    emptied_at  timestamptz
);
"""


def upgrade() -> None:
    """Create the table; the keys themselves are noted by `release`, which has MASTER_KEYS."""
    op.execute(KEYS)
