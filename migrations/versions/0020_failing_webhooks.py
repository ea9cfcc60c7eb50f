"""What the endpoint of a webhook is judged by before it is disabled: its own failures alone."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

COLUMNS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE lanes
    ADD COLUMN IF NOT EXISTS last_failures timestamptz[] NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS warned_at     timestamptz;
"""

# It was also set by deliveries that were refused on their own account.
FORGET = """
SELECT set_config('app.every_tenant', 'on', true);
UPDATE lanes SET failing_since = NULL WHERE consecutive_failures = 0 AND failing_since IS NOT NULL;
SELECT set_config('app.every_tenant', '', true);
"""


def upgrade() -> None:
    """Add the columns; the release before neither writes nor misses them."""
    for statements in (COLUMNS, FORGET):
        op.execute(statements)
