-- Returns the name of the table that holds one part of history: the parent's, and 12 digits of the
-- id.
-- Called by `make_history_partition` and `drop_history_partition`, which run with their owner's
-- rights: so it refuses any other parent.
--
-- parent                  `stored_events`, `ended_deliveries` or `earlier_attempts`
-- lower_bound             the least id of the part
CREATE OR REPLACE FUNCTION history_partition(parent text, lower_bound uuid) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF parent NOT IN ('stored_events', 'ended_deliveries', 'earlier_attempts') THEN
        RAISE EXCEPTION 'no history in table %', parent;
    END IF;
    RETURN parent || '_' || substr(replace(lower_bound::text, '-', ''), 1, 12);
END $$;
