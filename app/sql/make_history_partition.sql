-- Makes one part of history, with its owner's rights: the service's role may create no table.
-- Returns false where it exists.
-- Called by app/core/partitions.py.
--
-- parent                  `stored_events`, `ended_deliveries` or `earlier_attempts`
-- lower_bound             the least id of the part
-- upper_bound             the least id of the part that follows
--
-- Attaching a table takes a weaker lock than creating it as a partition.
CREATE OR REPLACE FUNCTION make_history_partition(parent text, lower_bound uuid, upper_bound uuid)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    child text := history_partition(parent, lower_bound);
BEGIN
    IF to_regclass('public.' || child) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE public.%I'
                   ' (LIKE public.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', child, parent);
    EXECUTE format('ALTER TABLE public.%I ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)',
                   parent, child, lower_bound, upper_bound);
    RETURN true;
END $$;
