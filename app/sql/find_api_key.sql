-- Finds a valid API key and its tenant; no row for one that is unknown, revoked or expired.
-- Called by app/core/keys/keyring.py for each request, before its tenant is known: so it lifts row-level
-- security (`app.every_tenant`) for this one query. plpgsql keeps the plan.
--
-- wanted                  the key's SHA-256
CREATE OR REPLACE FUNCTION find_api_key(wanted bytea)
RETURNS TABLE (tenant_id uuid, id uuid, role text, pin_agent_id uuid, pin_principal text)
LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.every_tenant', true), '');
BEGIN
    -- Not a SET clause of the function: for that PostgreSQL wants a superuser.
    PERFORM set_config('app.every_tenant', 'on', true);
    RETURN QUERY
    SELECT k.tenant_id, k.id, k.role, k.pin_agent_id, k.pin_principal FROM api_keys AS k
     WHERE k.digest = wanted AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
    PERFORM set_config('app.every_tenant', before, true);
END $$;
