"""What a mail server refuses for good: the content of a digest, its recipient, or the service."""

from alembic import op

revision = "0043"
down_revision = "0041"
branch_labels = None
depends_on = None

# `brief`: it is sent without titles, for the server refused them. `refusal` is what of the last
# attempt was refused for good, and `said` the server's words. The release before neither fills nor
# misses them, and ends a digest in none but the old states.
REFUSALS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE digests
    ADD COLUMN IF NOT EXISTS brief boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS refusal text CHECK (refusal IN ('server', 'recipient', 'content')),
    ADD COLUMN IF NOT EXISTS said text,
    DROP CONSTRAINT IF EXISTS digests_status_check,
    ADD CONSTRAINT digests_status_check CHECK (status IN
        ('pending', 'sending', 'sent', 'uncertain', 'content_refused', 'cancelled'));

-- Digests whose findings the next one lists again; in place of the index of uncertain ones alone.
CREATE INDEX IF NOT EXISTS digests_lost ON digests (tenant_id, series)
    WHERE status IN ('uncertain', 'content_refused');
DROP INDEX IF EXISTS digests_uncertain;
"""


def upgrade() -> None:
    """Add the columns and the state."""
    op.execute(REFUSALS)
