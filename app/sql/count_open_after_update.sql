-- Trigger on `deliveries`, after UPDATE, for each statement: adds the rows that are open now to the
-- lane's counters `events_open`, `replays_open` and `tests_open`, and subtracts those that were. An
-- event counts from when it has a number. app/core/delivery/accounting.py compares the counters
-- with a scan. No arguments.
--
-- It also counts the events whose delivery has failed, or was cancelled, and which a replay has
-- delivered, in `failed_arrived` and `cancelled_arrived`. Few statements end such rows (`ends`).
-- Which of the two ends first does not matter, an event counts once however many replays of it
-- arrive, and it counts no more if its own delivery succeeds after all. That delivery has the
-- sequence and the millisecond of its event. Sequential scans are off: a plan made for a small
-- table would be kept when it has grown.
CREATE OR REPLACE FUNCTION count_open_after_update() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ended boolean;
    scans text;
BEGIN
    WITH changed AS (
        SELECT tenant_id, webhook_id,
               coalesce(sum(n) FILTER (WHERE kind = 'event'), 0) AS events,
               coalesce(sum(n) FILTER (WHERE kind = 'replay'), 0) AS replays,
               coalesce(sum(n) FILTER (WHERE kind = 'test'), 0) AS tests,
               bool_or(n = 0) AS ends
          FROM (SELECT tenant_id, webhook_id, kind,
                       CASE WHEN finished_at IS NULL THEN 1 ELSE 0 END AS n FROM fresh
                 WHERE finished_at IS NULL AND (sequence IS NOT NULL OR kind <> 'event')
                    OR kind = 'replay' AND status = 'succeeded'
                    OR kind = 'event' AND status IN ('failed', 'cancelled')
                 UNION ALL
                SELECT tenant_id, webhook_id, kind,
                       CASE WHEN finished_at IS NULL THEN -1 ELSE 0 END AS n FROM stale
                 WHERE finished_at IS NOT NULL OR sequence IS NOT NULL OR kind <> 'event'
               ) AS counted
         GROUP BY tenant_id, webhook_id
    ), counted AS (
        UPDATE lanes AS l
           SET events_open = l.events_open + changed.events,
               replays_open = l.replays_open + changed.replays,
               tests_open = l.tests_open + changed.tests
          FROM changed
         WHERE l.tenant_id = changed.tenant_id AND l.webhook_id = changed.webhook_id
           AND (changed.events <> 0 OR changed.replays <> 0 OR changed.tests <> 0)
    )
    SELECT bool_or(ends) INTO ended FROM changed;
    IF ended IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    scans := current_setting('enable_seqscan');
    PERFORM set_config('enable_seqscan', 'off', true);
    UPDATE lanes AS l
       SET failed_arrived = l.failed_arrived + changed.failed,
           cancelled_arrived = l.cancelled_arrived + changed.cancelled
      FROM (SELECT tenant_id, webhook_id,
                   count(*) FILTER (WHERE status = 'failed')
                   - count(*) FILTER (WHERE had_arrived AND was = 'failed') AS failed,
                   count(*) FILTER (WHERE status = 'cancelled')
                   - count(*) FILTER (WHERE had_arrived AND was = 'cancelled') AS cancelled
              FROM (SELECT e.tenant_id, e.webhook_id, arrived.before AS had_arrived, own.status,
                           CASE WHEN own.id NOT IN (SELECT id FROM stale) THEN own.status
                                WHEN own.id IN (SELECT id FROM stale WHERE status = 'cancelled')
                                THEN 'cancelled' END AS was
                      FROM (SELECT tenant_id, webhook_id, event_id, sequence FROM fresh
                             WHERE finished_at IS NOT NULL
                             UNION
                            SELECT tenant_id, webhook_id, event_id, sequence FROM stale
                             WHERE finished_at IS NOT NULL) AS e
                      JOIN lanes AS lane
                        ON lane.tenant_id = e.tenant_id AND lane.webhook_id = e.webhook_id
                       AND lane.replays_accepted > 0
                     CROSS JOIN LATERAL (
                        SELECT bool_or(r.id NOT IN (
                                   SELECT id FROM stale WHERE status <> 'succeeded')) AS before
                          FROM deliveries AS r
                         WHERE r.tenant_id = e.tenant_id AND r.webhook_id = e.webhook_id
                           AND r.kind = 'replay' AND r.event_id = e.event_id
                           AND r.status = 'succeeded'
                        HAVING count(*) > 0) AS arrived
                     CROSS JOIN LATERAL (
                        SELECT d.id, d.status FROM deliveries AS d
                         WHERE d.tenant_id = e.tenant_id AND d.webhook_id = e.webhook_id
                           AND d.kind = 'event' AND d.sequence = e.sequence
                           AND d.event_id = e.event_id
                           AND d.id BETWEEN (left(e.event_id::text, 13)
                                             || '-0000-0000-000000000000')::uuid
                                        AND (left(e.event_id::text, 13)
                                             || '-ffff-ffff-ffffffffffff')::uuid) AS own
                   ) AS told
             GROUP BY tenant_id, webhook_id) AS changed
     WHERE l.tenant_id = changed.tenant_id AND l.webhook_id = changed.webhook_id
       AND (changed.failed <> 0 OR changed.cancelled <> 0);
    PERFORM set_config('enable_seqscan', scans, true);
    RETURN NULL;
END $$;
