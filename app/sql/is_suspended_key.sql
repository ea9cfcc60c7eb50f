-- Says whether an API key is one of a suspended tenant, so that the refusal can say so.
-- Called by app/core/keys/keyring.py for a key that was not found, before its tenant is known: so it lifts
-- row-level security (`app.every_tenant`) for this one query.
--
-- wanted                  the key's SHA-256
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
