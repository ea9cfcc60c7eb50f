"""The words of findings, which are indexed in the background."""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

# Words are keyed hashes, so the table needs no wall, and must have none (0002). The place up to
# which a tenant is indexed is null: the first ticks index what there is.
WORDS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE tenants ADD COLUMN IF NOT EXISTS findings_indexed uuid;

CREATE TABLE IF NOT EXISTS finding_words (
    tenant_id  uuid NOT NULL,
    finding_id uuid NOT NULL,
    words      tsvector NOT NULL,
    PRIMARY KEY (tenant_id, finding_id)
);
CREATE INDEX IF NOT EXISTS finding_words_words ON finding_words USING gin (words)
    WITH (gin_pending_list_limit = 256);
ALTER TABLE finding_words ALTER COLUMN words SET STATISTICS 500;
"""


def upgrade() -> None:
    """Add the table; the release before neither fills nor misses it."""
    op.execute(WORDS)
