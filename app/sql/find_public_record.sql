-- Finds the tenant of a record that is public: no row unless the tenant shows its bundles to the
-- public and is not suspended.
-- Called by app/core/records/share_links.py before the tenant is known: so it lifts row-level
-- security (`app.every_tenant`) for this one query.
--
-- wanted                  the record's id
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
