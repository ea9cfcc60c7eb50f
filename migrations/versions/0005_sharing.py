"""Sharing: links that open one record, who opened them, and how a public record is found."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

LINKS = """
CREATE TABLE share_links (
    tenant_id      uuid NOT NULL,
    id             uuid NOT NULL,
    record_id      uuid NOT NULL,
    digest         bytea NOT NULL CHECK (length(digest) = 32),
    created_at     timestamptz NOT NULL,
    created_by     uuid NOT NULL,
    expires_at     timestamptz NOT NULL CHECK (expires_at > created_at),
    revoked_at     timestamptz,
    opened         bigint NOT NULL DEFAULT 0,
    last_opened_at timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, record_id) REFERENCES records
);
CREATE INDEX share_links_record ON share_links (tenant_id, record_id, id);
-- The other of the two lookups that find a tenant.
CREATE UNIQUE INDEX share_links_digest ON share_links (digest);

-- Only what tells the first opening of a link by an address, on one day, from the others. The
-- address itself is nowhere: it is hashed with the link's token, which is not kept either.
CREATE TABLE share_link_openings (
    tenant_id     uuid NOT NULL,
    share_link_id uuid NOT NULL,
    day           date NOT NULL,
    address_hash  bytea NOT NULL CHECK (length(address_hash) = 32),
    PRIMARY KEY (tenant_id, share_link_id, day, address_hash),
    FOREIGN KEY (tenant_id, share_link_id) REFERENCES share_links
);
CREATE INDEX share_link_openings_day ON share_link_openings (day);
"""

# As `find_api_key`: each opens the walls for one question and no more.
FUNCTIONS = """
CREATE FUNCTION find_share_link(wanted bytea)
RETURNS TABLE (tenant_id uuid, id uuid, record_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.every_tenant', true), '');
BEGIN
    PERFORM set_config('app.every_tenant', 'on', true);
    RETURN QUERY
    SELECT l.tenant_id, l.id, l.record_id FROM share_links AS l
     WHERE l.digest = wanted AND l.revoked_at IS NULL AND l.expires_at > clock_timestamp();
    PERFORM set_config('app.every_tenant', before, true);
END $$;

CREATE FUNCTION find_public_record(wanted uuid) RETURNS TABLE (tenant_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.every_tenant', true), '');
BEGIN
    PERFORM set_config('app.every_tenant', 'on', true);
    RETURN QUERY
    SELECT r.tenant_id FROM records AS r JOIN tenants AS t ON t.id = r.tenant_id
     WHERE r.id = wanted AND t.bundle_visibility = 'public';
    PERFORM set_config('app.every_tenant', before, true);
END $$;
"""

WALL = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
CREATE POLICY {table}_of_this_tenant ON {table} USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""


def upgrade() -> None:
    """Create what sharing needs."""
    op.execute(LINKS)
    op.execute(FUNCTIONS)
    for table in ("share_links", "share_link_openings"):
        op.execute(WALL.format(table=table))
