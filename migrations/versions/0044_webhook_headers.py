"""A webhook's URL and the headers of its receiver's own are sealed, in one column."""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

# SQL has no MASTER_KEYS: the tick `seal_webhooks` seals the URLs of before, once no process of the
# release before runs. A sealed row's `url` keeps what anybody may see, and ends with a # that no
# URL of a webhook has.
TARGETS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE webhooks ADD COLUMN IF NOT EXISTS sealed_target bytea;
CREATE INDEX IF NOT EXISTS webhooks_plain ON webhooks (tenant_id, id) WHERE url NOT LIKE '%#';
"""


def upgrade() -> None:
    """Add the column; the release before goes on with plain URLs, which are read as before."""
    op.execute(TARGETS)
