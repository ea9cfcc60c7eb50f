-- Finds an API key that is not valid now, so that its refusal can be told to its tenant: no row for
-- one that is unknown, or valid.
-- Called by app/core/keys/keyring.py for a key that was not found, before its tenant is known: so it lifts
-- row-level security (`app.every_tenant`) for this one query.
--
-- wanted                  the key's SHA-256
-- state                   `suspended` (its tenant is, and it works again after that), `revoked`,
--                         `expired`
CREATE OR REPLACE FUNCTION find_ended_key(wanted bytea)
RETURNS TABLE (tenant_id uuid, id uuid, role text, state text)
LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.every_tenant', true), '');
BEGIN
    PERFORM set_config('app.every_tenant', 'on', true);
    RETURN QUERY
    SELECT k.tenant_id, k.id, k.role,
           CASE WHEN k.expires_at <= clock_timestamp() THEN 'expired'
                WHEN k.suspended_at IS NOT NULL THEN 'suspended' ELSE 'revoked' END
      FROM api_keys AS k
     WHERE k.digest = wanted
       AND (k.revoked_at IS NOT NULL OR k.expires_at <= clock_timestamp());
    PERFORM set_config('app.every_tenant', before, true);
END $$;
