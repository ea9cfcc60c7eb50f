-- Trigger on `tenants`, before INSERT and before UPDATE of `notification_email`, for each row:
-- another address gets a new `address_nonce`, which ends the unsubscribe links of the one before;
-- an address where none was begins a new `digest_series`, and no address ends it. Findings enter
-- the series by `add_findings`. No arguments.
CREATE OR REPLACE FUNCTION keep_digest_series() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' OR NEW.notification_email IS DISTINCT FROM OLD.notification_email THEN
        NEW.address_nonce := gen_random_uuid();
    END IF;
    IF NEW.notification_email IS NULL THEN
        NEW.digest_series := NULL;
    ELSIF NEW.digest_series IS NULL THEN
        NEW.digest_series := gen_random_uuid();
    END IF;
    RETURN NEW;
END $$;
