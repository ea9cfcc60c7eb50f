-- Trigger on `deliveries`, after DELETE, for each statement: subtracts the open rows that are gone
-- from the lane's counters `events_open`, `replays_open` and `tests_open`. An event counts from
-- when it has a number. app/core/delivery/accounting.py compares the counters with a scan. No
-- arguments.
CREATE OR REPLACE FUNCTION count_open_after_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE lanes AS l
       SET events_open = l.events_open + changed.events,
           replays_open = l.replays_open + changed.replays,
           tests_open = l.tests_open + changed.tests
      FROM (SELECT tenant_id, webhook_id,
                   coalesce(sum(n) FILTER (WHERE kind = 'event'), 0) AS events,
                   coalesce(sum(n) FILTER (WHERE kind = 'replay'), 0) AS replays,
                   coalesce(sum(n) FILTER (WHERE kind = 'test'), 0) AS tests
              FROM (SELECT tenant_id, webhook_id, kind, -1 AS n FROM stale
                     WHERE finished_at IS NULL AND (sequence IS NOT NULL OR kind <> 'event')
                   ) AS counted
             GROUP BY tenant_id, webhook_id) AS changed
     WHERE l.tenant_id = changed.tenant_id AND l.webhook_id = changed.webhook_id
       AND (changed.events <> 0 OR changed.replays <> 0 OR changed.tests <> 0);
    RETURN NULL;
END $$;
