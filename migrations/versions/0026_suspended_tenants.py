"""Tenants that an operator suspended, and the keys that a key minted."""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

# A suspended key has `revoked_at` too: so every release, and every function that asks whether a key
# is good, refuses it from that moment.
COLUMNS = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE tenants ADD COLUMN IF NOT EXISTS suspended_at timestamptz;
ALTER TABLE api_keys ADD COLUMN IF NOT EXISTS suspended_at timestamptz;
-- The sweep asks each second who is suspended, and that is next to nobody.
CREATE INDEX IF NOT EXISTS tenants_suspended ON tenants (id) WHERE suspended_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS api_keys_minted_by ON api_keys (tenant_id, created_by)
    WHERE created_by IS NOT NULL;
"""

FUNCTIONS = """
CREATE OR REPLACE FUNCTION is_suspended_key(wanted bytea) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.every_tenant', true), '');
    found_one boolean;
BEGIN
    PERFORM set_config('app.every_tenant', 'on', true);
    SELECT EXISTS (SELECT FROM api_keys AS k
                    WHERE k.digest = wanted AND k.suspended_at IS NOT NULL
                      AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()))
      INTO found_one;
    PERFORM set_config('app.every_tenant', before, true);
    RETURN found_one;
END $$;

CREATE OR REPLACE FUNCTION find_share_link(wanted bytea)
RETURNS TABLE (tenant_id uuid, id uuid, record_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.every_tenant', true), '');
BEGIN
    PERFORM set_config('app.every_tenant', 'on', true);
    RETURN QUERY
    SELECT l.tenant_id, l.id, l.record_id
      FROM share_links AS l JOIN tenants AS t ON t.id = l.tenant_id
     WHERE l.digest = wanted AND l.revoked_at IS NULL AND l.expires_at > clock_timestamp()
       AND t.suspended_at IS NULL;
    PERFORM set_config('app.every_tenant', before, true);
END $$;

CREATE OR REPLACE FUNCTION find_public_record(wanted uuid) RETURNS TABLE (tenant_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.every_tenant', true), '');
BEGIN
    PERFORM set_config('app.every_tenant', 'on', true);
    RETURN QUERY
    SELECT r.tenant_id FROM records AS r JOIN tenants AS t ON t.id = r.tenant_id
     WHERE r.id = wanted AND t.bundle_visibility = 'public' AND t.suspended_at IS NULL;
    PERFORM set_config('app.every_tenant', before, true);
END $$;
"""


def upgrade() -> None:
    """Add the columns, and have links and public records of suspended tenants open nothing."""
    for statements in (COLUMNS, FUNCTIONS):
        op.execute(statements)
