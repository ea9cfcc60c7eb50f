-- Trigger on `deliveries`, after UPDATE, for each statement: counts the events of a lane whose
-- delivery has failed, or was cancelled, and which a replay has delivered, in `failed_arrived` and
-- `cancelled_arrived`. app/core/delivery/accounting.py shows them. No arguments.
--
-- Which of the two ends first does not matter, an event counts once however many replays of it
-- arrive, and it counts no more if its own delivery succeeds after all. Most statements end no such
-- row: the first condition returns at once. An event's own delivery has its sequence and its
-- millisecond. Sequential scans are off: a plan made for a small table would be kept when it has
-- grown.
CREATE OR REPLACE FUNCTION count_arrived_after_update() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM fresh
                    WHERE kind = 'replay' AND status = 'succeeded'
                       OR kind = 'event' AND status IN ('failed', 'cancelled'))
       AND NOT EXISTS (SELECT FROM stale WHERE finished_at IS NOT NULL) THEN
        RETURN NULL;
    END IF;
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
    RETURN NULL;
END $$;
