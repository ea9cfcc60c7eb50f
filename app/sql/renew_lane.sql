-- Trigger on `lanes`, before each row's INSERT or UPDATE: gives it its next version, and says when the
-- sweep has to look at it, two seconds after it was rung at the earliest. No arguments.
CREATE OR REPLACE FUNCTION renew_lane() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := NEW.version + 1;
    NEW.look_at := CASE WHEN NEW.due_at IS NOT NULL
                        THEN greatest(NEW.due_at, NEW.ring_at + interval '2 s', clock_timestamp())
                   END;
    RETURN NEW;
END $$;
