-- Raises `object_in_use` where a week of history has deliveries that are still open, or events that
-- such deliveries are to send.
-- Called by `drop_history_partition`.
--
-- parent                  `events`, `deliveries` or `delivery_attempts`
-- lower_bound             the least id of the week
-- upper_bound             the least id of the week after
CREATE OR REPLACE FUNCTION refuse_open_deliveries(parent text, lower_bound uuid, upper_bound uuid)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found_open boolean := false;
BEGIN
    IF parent = 'deliveries' THEN
        SELECT EXISTS (SELECT FROM public.deliveries
                        WHERE id >= lower_bound AND id < upper_bound AND finished_at IS NULL)
          INTO found_open;
    ELSIF parent = 'events' THEN
        SELECT EXISTS (SELECT FROM public.deliveries
                        WHERE event_id >= lower_bound AND event_id < upper_bound
                          AND finished_at IS NULL)
          INTO found_open;
    END IF;
    IF found_open THEN
        RAISE EXCEPTION 'a week of % has open deliveries', parent USING ERRCODE = 'object_in_use';
    END IF;
END $$;
