-- Returns the name of the table that holds one part of history: the parent's, and 12 digits of the
-- id.
-- Called by `make_history_partition` and `drop_history_partition`, which run with their owner's
-- rights: so it refuses any other parent.
--
-- parent                  `events`, `ended_deliveries` or `delivery_attempts`
-- lower_bound             the least id of the part
CREATE OR REPLACE FUNCTION history_partition(parent text, lower_bound uuid) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF parent NOT IN ('events', 'ended_deliveries', 'delivery_attempts') THEN
        RAISE EXCEPTION 'no history in table %', parent;
    END IF;
    RETURN parent || '_' || substr(replace(lower_bound::text, '-', ''), 1, 12);
END $$;
