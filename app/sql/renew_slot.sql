-- Trigger on `lane_slots`, before each row's UPDATE: gives it its next version. No arguments.
CREATE OR REPLACE FUNCTION renew_slot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := NEW.version + 1;
    RETURN NEW;
END $$;
