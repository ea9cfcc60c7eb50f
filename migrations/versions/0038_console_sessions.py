"""Sessions of the console: who signed in with which key."""

from alembic import op

revision = "0038"
down_revision = "0036"
branch_labels = None
depends_on = None

SESSIONS = """
CREATE TABLE IF NOT EXISTS console_sessions (
    tenant_id    uuid NOT NULL,
    digest       bytea NOT NULL CHECK (length(digest) = 32),
    api_key_id   uuid NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, digest),
    FOREIGN KEY (tenant_id, api_key_id) REFERENCES api_keys
);
ALTER TABLE console_sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE console_sessions FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS console_sessions_of_this_tenant ON console_sessions;
CREATE POLICY console_sessions_of_this_tenant ON console_sessions USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""


def upgrade() -> None:
    """Create the table; the release before knows nothing of it."""
    op.execute("SET LOCAL lock_timeout = '2s'")
    op.execute(SESSIONS)
