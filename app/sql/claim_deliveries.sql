-- Leases due deliveries of a webhook, most urgent first, then longest due; numbers their events.
-- Called by app/core/delivery/claims.py, which has locked the lane by a statement of its own: with
-- a snapshot from before the lock, two claims would leave gaps in the sequence.
--
-- tenant, webhook         the lane
-- slot_holder             claims only while it holds one of the lane's slots; null claims anyway
-- at_most                 how many
-- lowest                  the least urgent priority: 0 urgent, 1 live, 2 bulk
--                         (app/core/delivery/events.py)
-- lease                   how long the deliveries are the caller's
--
-- An event is numbered here, which saves one version of its row. `placed` joins the event before
-- rows are counted, so a row without an event takes no number. What is numbered counts as accepted,
-- in the hour that `accepted_hour` says. Sequential scans are off: a plan made for a small table
-- would be kept when it has grown. OFFSET 0 has events found by their keys, ANY has deliveries
-- found by theirs.
CREATE OR REPLACE FUNCTION claim_deliveries(
    tenant uuid, webhook uuid, slot_holder uuid, at_most integer, lowest smallint, lease interval)
RETURNS TABLE (
    id uuid, event_id uuid, kind text, priority smallint, sequence bigint, attempts smallint,
    unscheduled smallint, claim_no bigint, claims_lost smallint, taken_over boolean,
    created_at timestamptz, payload bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT picked.*
          FROM (VALUES (0), (1), (2)) AS level (priority)
         CROSS JOIN LATERAL (
            SELECT d.id, d.event_id, d.created_at, d.status = 'sending' AS taken_over,
                   d.sequence IS NULL AND d.kind = 'event' AS unnumbered
              FROM deliveries AS d
             WHERE d.tenant_id = tenant AND d.webhook_id = webhook
               AND d.priority = level.priority AND d.finished_at IS NULL
               AND d.next_attempt_at <= (SELECT clock_timestamp())
             ORDER BY d.next_attempt_at LIMIT at_most
               FOR NO KEY UPDATE SKIP LOCKED) AS picked
         WHERE level.priority <= lowest
           AND (slot_holder IS NULL OR EXISTS (
                SELECT FROM lane_slots AS s
                 WHERE s.tenant_id = tenant AND s.webhook_id = webhook
                   AND s.holder = slot_holder))
         LIMIT at_most
    ), placed AS MATERIALIZED (
        SELECT due.id, due.created_at, due.taken_over, e.payload,
               CASE WHEN due.unnumbered
                    THEN row_number() OVER (PARTITION BY due.unnumbered ORDER BY due.id)
                END AS place
          FROM due CROSS JOIN LATERAL (
            SELECT payload FROM events
             WHERE tenant_id = tenant AND id = due.event_id OFFSET 0) AS e
    ), numbered AS (
        UPDATE lanes SET next_sequence = next_sequence + found.count,
                         due_at = least(due_at, greatest(clock_timestamp(), paused_until))
          FROM (SELECT count(place) AS count FROM placed) AS found
         WHERE tenant_id = tenant AND webhook_id = webhook AND found.count > 0
    ), accepted AS (
        INSERT INTO delivery_hours AS h (tenant_id, at, webhook_id, accepted)
        SELECT tenant, accepted_hour(placed.created_at), webhook, count(*)
          FROM placed WHERE placed.place IS NOT NULL GROUP BY 2
        ON CONFLICT (tenant_id, at, webhook_id) DO UPDATE
           SET accepted = h.accepted + excluded.accepted
    )
    UPDATE deliveries AS d
       SET sequence = coalesce(d.sequence, l.next_sequence - 1 + placed.place),
           claims_lost = claims_lost + placed.taken_over::int, status = 'sending',
           claim_no = claim_no + 1, next_attempt_at = clock_timestamp() + lease
      FROM placed, lanes AS l
     WHERE d.tenant_id = tenant AND d.id = placed.id
       AND d.id = ANY (ARRAY(SELECT id FROM placed))
       AND l.tenant_id = tenant AND l.webhook_id = webhook
    RETURNING d.id, d.event_id, d.kind, d.priority, d.sequence, d.attempts, d.unscheduled,
              d.claim_no, d.claims_lost, placed.taken_over, d.created_at, placed.payload;
END $$;
