"""The former names of agents: a proof has the name that its agent had when the record was made."""

from alembic import op

revision = "0046"
down_revision = "0044"
branch_labels = None
depends_on = None

# `until` is when an agent was given another name. Agents that were never renamed have no row, so
# what the release before renames meanwhile has the new name for all of its records.
NAMES = """
CREATE TABLE IF NOT EXISTS former_agent_names (
    tenant_id uuid NOT NULL,
    agent_id  uuid NOT NULL,
    until     timestamptz NOT NULL DEFAULT clock_timestamp(),
    name      text NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, until),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents
);
ALTER TABLE former_agent_names ENABLE ROW LEVEL SECURITY;
ALTER TABLE former_agent_names FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS former_agent_names_of_this_tenant ON former_agent_names;
CREATE POLICY former_agent_names_of_this_tenant ON former_agent_names USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""


def upgrade() -> None:
    """Add the table; the release before neither fills nor misses it."""
    op.execute("SET LOCAL lock_timeout = '2s'")
    op.execute(NAMES)
