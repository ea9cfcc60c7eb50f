"""Chain seals: the salt that names a chain in the log, bound to what the database's owner lacks."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# Only who holds MASTER_KEYS makes a salt with its seal: `release` gives both to whom both lack. A
# salt that anchored nothing is given up for one that has a seal.
SEALS = """
SET LOCAL app.every_tenant = 'on';
ALTER TABLE tenants ADD COLUMN chain_seal bytea;
ALTER TABLE tenants ALTER COLUMN chain_salt DROP DEFAULT, ALTER COLUMN chain_salt DROP NOT NULL;
UPDATE tenants AS t SET chain_salt = NULL
 WHERE NOT EXISTS (SELECT FROM audit_anchors AS a WHERE a.tenant_id = t.id);
CREATE INDEX tenants_unsealed ON tenants (id) WHERE chain_salt IS NULL AND chain_seal IS NULL;
"""

# Chains of tenants that were removed on purpose. Sealed too: who has the database alone adds none.
ACKNOWLEDGED = """
CREATE TABLE acknowledged_chains (
    chain bytea PRIMARY KEY CHECK (length(chain) = 32),
    seal  bytea NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""

# Who asks again within a minute gets what a job found.
FINISHED = """
CREATE INDEX jobs_verified ON jobs (tenant_id, kind, dedupe_key, finished_at)
 WHERE kind = 'verify_audit' AND finished_at IS NOT NULL;
"""


def upgrade() -> None:
    """Add seals; the salts and seals themselves are made by `release`, which has MASTER_KEYS."""
    for statements in (SEALS, ACKNOWLEDGED, FINISHED):
        op.execute(statements)
