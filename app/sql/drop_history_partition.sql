-- Drops one part of history, with its owner's rights: the service's role may drop no table.
-- Called by app/core/partitions.py.
--
-- parent                  `stored_events`, `ended_deliveries` or `earlier_attempts`
-- lower_bound             the least id of the part
--
-- Refuses what is younger than `history_policy` allows, events that open deliveries are to send, and
-- the place where these are to end. They are searched before the exclusive lock is taken, so that a
-- refusal blocks no writer, and again under it.
CREATE OR REPLACE FUNCTION drop_history_partition(parent text, lower_bound uuid)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    child text := history_partition(parent, lower_bound);
    before text := coalesce(current_setting('app.every_tenant', true), '');
    upper_bound uuid;
    kept_from timestamptz;
    is_locked boolean := false;
BEGIN
    SELECT substring(pg_get_expr(c.relpartbound, c.oid) FROM $re$TO \('([^']+)'\)$re$)::uuid
      INTO upper_bound
      FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
     WHERE inhparent = to_regclass('public.' || parent) AND c.oid = to_regclass('public.' || child);
    IF upper_bound IS NULL THEN
        RAISE EXCEPTION '% is no part of %', child, parent USING ERRCODE = 'undefined_table';
    END IF;
    SELECT clock_timestamp() - make_interval(days => days) INTO STRICT kept_from
      FROM history_policy;
    IF uuid_made_at(upper_bound) > kept_from THEN
        RAISE EXCEPTION '% holds what is younger than HISTORY_DAYS at the last release', child
              USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM set_config('app.every_tenant', 'on', true);
    LOOP
        IF parent <> 'earlier_attempts' AND EXISTS (
               SELECT FROM public.open_deliveries AS d
                WHERE CASE parent WHEN 'stored_events' THEN d.event_id ELSE d.id END >= lower_bound
                  AND CASE parent WHEN 'stored_events' THEN d.event_id ELSE d.id END < upper_bound) THEN
            RAISE EXCEPTION 'open deliveries need % of %', child, parent
                  USING ERRCODE = 'object_in_use';
        END IF;
        EXIT WHEN is_locked;
        EXECUTE format('LOCK TABLE ONLY public.%I IN ACCESS EXCLUSIVE MODE', parent);
        is_locked := true;
    END LOOP;
    EXECUTE format('DROP TABLE public.%I', child);
    PERFORM set_config('app.every_tenant', before, true);
END $$;
