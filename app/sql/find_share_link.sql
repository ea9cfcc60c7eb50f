-- Finds a valid share link, its tenant and its record; no row for one that is unknown, revoked or
-- expired, or whose tenant is suspended.
-- Called by app/core/records/share_links.py before the tenant is known: so it lifts row-level
-- security (`app.every_tenant`) for this one query.
--
-- wanted                  the token's digest
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
