"""What verifying audit chains found: breaks, each told once; and chains by their names."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# Of the service's own (no tenant): what is wrong with the log, and chains that no tenant has.
BREAKS = """
CREATE TABLE audit_breaks (
    tenant_id   uuid NOT NULL,
    subject     text NOT NULL,
    seq         bigint NOT NULL,
    reason      text NOT NULL,
    expected    text NOT NULL,
    found       text NOT NULL,
    detected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    healed_at   timestamptz,
    PRIMARY KEY (tenant_id, subject, seq, reason)
);
CREATE INDEX audit_breaks_open ON audit_breaks (tenant_id) WHERE healed_at IS NULL;
ALTER TABLE audit_breaks ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit_breaks FORCE ROW LEVEL SECURITY;
CREATE POLICY audit_breaks_of_this_tenant ON audit_breaks USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""

# Whose chain a leaf of the log is of.
NAMES = """
CREATE INDEX tenants_chain ON tenants (sha256('audit-chain:'::bytea || chain_salt));
"""


def upgrade() -> None:
    """Create what verifying needs."""
    op.execute(BREAKS)
    op.execute(NAMES)
