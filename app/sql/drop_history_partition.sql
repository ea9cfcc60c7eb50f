-- Drops one week of history, with its owner's rights: the service's role may drop no table.
-- Called by app/core/partitions.py.
--
-- parent                  `events`, `deliveries` or `delivery_attempts`
-- lower_bound             the least id of the week
--
-- Refuses a week that is younger than `history_policy` allows, or that has open deliveries. These
-- are searched before the exclusive lock is taken, so that a refusal blocks no writer, and again
-- under it.
CREATE OR REPLACE FUNCTION drop_history_partition(parent text, lower_bound uuid)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    child text := history_partition(parent, lower_bound);
    before text := coalesce(current_setting('app.every_tenant', true), '');
    upper_bound uuid;
    kept_from timestamptz;
BEGIN
    SELECT substring(pg_get_expr(c.relpartbound, c.oid) FROM $re$TO \('([^']+)'\)$re$)::uuid
      INTO upper_bound
      FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
     WHERE inhparent = to_regclass('public.' || parent) AND c.oid = to_regclass('public.' || child);
    IF upper_bound IS NULL THEN
        RAISE EXCEPTION '% is no week of %', child, parent USING ERRCODE = 'undefined_table';
    END IF;
    SELECT clock_timestamp() - make_interval(days => days) INTO STRICT kept_from
      FROM history_policy;
    IF uuid_made_at(upper_bound) > kept_from THEN
        RAISE EXCEPTION '% holds what is younger than HISTORY_DAYS at the last release', child
              USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM set_config('app.every_tenant', 'on', true);
    PERFORM refuse_open_deliveries(parent, lower_bound, upper_bound);
    EXECUTE format('LOCK TABLE ONLY public.%I IN ACCESS EXCLUSIVE MODE', parent);
    PERFORM refuse_open_deliveries(parent, lower_bound, upper_bound);
    EXECUTE format('DROP TABLE public.%I', child);
    PERFORM set_config('app.every_tenant', before, true);
END $$;
