-- Makes one week of history, with its owner's rights: the service's role may create no table.
-- Returns false where the week exists.
-- Called by app/core/partitions.py.
--
-- parent                  `events`, `deliveries` or `delivery_attempts`
-- lower_bound             the least id of the week
-- upper_bound             the least id of the week after
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
