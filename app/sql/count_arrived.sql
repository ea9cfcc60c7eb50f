-- Counts, in `lanes.failed_arrived` and `cancelled_arrived`, the events whose own delivery has failed
-- or was cancelled, and which a replay has delivered.
-- Called by app/core/delivery/cancelling.py, right after the statement that ended deliveries, in
-- its transaction.
--
-- tenant                  whose deliveries
-- ended                   their ids
-- they_were               what they were: null for open, or `cancelled`
--
-- Which of the two ends first does not matter, an event counts once however many replays of it
-- arrive, and it counts no more if its own delivery succeeds after all. That delivery has the
-- sequence and the millisecond of its event.
CREATE OR REPLACE FUNCTION count_arrived(tenant uuid, ended uuid[], they_were text)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE lanes AS l
       SET failed_arrived = l.failed_arrived + changed.failed,
           cancelled_arrived = l.cancelled_arrived + changed.cancelled
      FROM (SELECT webhook_id,
                   count(*) FILTER (WHERE status = 'failed')
                   - count(*) FILTER (WHERE had_arrived AND was = 'failed') AS failed,
                   count(*) FILTER (WHERE status = 'cancelled')
                   - count(*) FILTER (WHERE had_arrived AND was = 'cancelled') AS cancelled
              FROM (SELECT e.webhook_id, arrived.before AS had_arrived, own.status,
                           CASE WHEN own.id = ANY (ended) THEN they_were ELSE own.status END AS was
                      FROM (SELECT DISTINCT d.webhook_id, d.event_id, d.sequence
                              FROM ended_deliveries AS d
                             WHERE d.tenant_id = tenant AND d.id = ANY (ended)) AS e
                      JOIN lanes AS lane
                        ON lane.tenant_id = tenant AND lane.webhook_id = e.webhook_id
                       AND lane.replays_accepted > 0
                     CROSS JOIN LATERAL (
                        SELECT bool_or(r.id <> ALL (ended)) AS before
                          FROM ended_deliveries AS r
                         WHERE r.tenant_id = tenant AND r.webhook_id = e.webhook_id
                           AND r.kind = 'replay' AND r.event_id = e.event_id
                           AND r.status = 'succeeded'
                        HAVING count(*) > 0) AS arrived
                     CROSS JOIN LATERAL (
                        SELECT d.id, d.status FROM ended_deliveries AS d
                         WHERE d.tenant_id = tenant AND d.webhook_id = e.webhook_id
                           AND d.kind = 'event' AND d.sequence = e.sequence
                           AND d.event_id = e.event_id
                           AND d.id BETWEEN (left(e.event_id::text, 13)
                                             || '-0000-0000-000000000000')::uuid
                                        AND (left(e.event_id::text, 13)
                                             || '-ffff-ffff-ffffffffffff')::uuid) AS own
                   ) AS told
             GROUP BY webhook_id) AS changed
     WHERE l.tenant_id = tenant AND l.webhook_id = changed.webhook_id
       AND (changed.failed <> 0 OR changed.cancelled <> 0);
END $$;
