-- Trigger on `webhooks`, after each row's INSERT and UPDATE of `lanes`: names the lanes that it has.
-- None is ever taken away: what waits there is sent, and its numbers go on. No arguments.
CREATE OR REPLACE FUNCTION make_lanes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhook_lanes (tenant_id, id, webhook_id)
    SELECT NEW.tenant_id, lane_of(NEW.id, n), NEW.id FROM generate_series(1, NEW.lanes) AS n
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
