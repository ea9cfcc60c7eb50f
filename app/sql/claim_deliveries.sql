-- Leases due deliveries of a webhook, most urgent first, then longest due; numbers their events.
-- Called by app/core/delivery/claims.py, which has locked the lane by a statement of its own: with
-- a snapshot from before the lock, two claims would leave gaps in the sequence.
--
-- tenant, webhook         the lane
-- at_most                 how many
-- lowest                  the least urgent priority: 0 urgent, 1 live, 2 bulk
--                         (app/core/delivery/events.py)
-- lease                   how long the deliveries are the caller's
--
-- What is numbered counts as accepted, in the hour that `accepted_hour` says. Whoever changes an
-- open delivery holds its lane's lock, so no row is locked before it is written, and each is written
-- by its place: no plan can then read dead ones.
--
-- `lanes.open_from` has a moment for each level of urgency, before which no open delivery is due,
-- and last when it was looked for. Searches begin there: while an old snapshot stands, what was
-- delivered lies dead in the index before it. A row that no statement sees yet is of a transaction
-- that runs now, and is due after that one began.
--
-- Sequential scans and sorts of rows are off: a plan made for a small table would be kept when it
-- has grown. Payloads are read by a plan of their own, which knows the ids, so it opens the
-- partitions of these alone.
CREATE OR REPLACE FUNCTION claim_deliveries(
    tenant uuid, webhook uuid, at_most integer, lowest smallint, lease interval)
RETURNS TABLE (
    id uuid, event_id uuid, kind text, priority smallint, sequence bigint, attempts smallint,
    unscheduled smallint, claim_no bigint, claims_lost smallint, taken_over boolean,
    created_at timestamptz, payload bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    begins timestamptz[];
    settled timestamptz;
    claimed open_deliveries[];
    lost uuid[];
BEGIN
    SELECT open_from INTO begins FROM present_lanes
     WHERE tenant_id = tenant AND webhook_id = webhook;
    IF begins[6] < now() - interval '1 s' THEN
        settled := settled_before();
        SELECT array_agg(greatest(begins[place], least(settled, (
                   SELECT d.next_attempt_at FROM open_deliveries AS d
                    WHERE d.tenant_id = tenant AND d.webhook_id = webhook
                      AND d.priority = level.priority AND d.fresh = level.fresh
                      AND d.next_attempt_at >= begins[place]
                    ORDER BY d.next_attempt_at LIMIT 1))) ORDER BY place) || now()
          INTO begins
          FROM open_levels() AS level;
        UPDATE lanes SET open_from = begins
         WHERE tenant_id = tenant AND webhook_id = webhook AND version = (
               SELECT version FROM present_lanes
                WHERE tenant_id = tenant AND webhook_id = webhook);
    END IF;
    WITH present AS MATERIALIZED (
        SELECT clock_timestamp() AS now, version, next_sequence FROM present_lanes
         WHERE tenant_id = tenant AND webhook_id = webhook
    ), due AS MATERIALIZED (
        SELECT picked.*
          FROM open_levels() AS level
         CROSS JOIN LATERAL (
            SELECT d.ctid AS at, d.id, d.created_at, d.next_attempt_at, d.lease_until IS NOT NULL AS taken_over,
                   d.sequence IS NULL AND d.kind = 'event' AS unnumbered
              FROM open_deliveries AS d
             WHERE d.tenant_id = tenant AND d.webhook_id = webhook
               AND d.priority = level.priority AND d.fresh = level.fresh
               AND d.next_attempt_at >= begins[level.place]
               AND d.next_attempt_at <= (SELECT now FROM present)
               AND (d.lease_until IS NULL OR d.lease_until <= (SELECT now FROM present))
             ORDER BY d.next_attempt_at LIMIT at_most) AS picked
         WHERE level.priority <= lowest
         ORDER BY level.priority, picked.next_attempt_at LIMIT at_most
    ), placed AS MATERIALIZED (
        SELECT due.at, due.id, due.created_at, due.taken_over,
               CASE WHEN due.unnumbered
                    THEN row_number() OVER (PARTITION BY due.unnumbered ORDER BY due.id)
                END AS place
          FROM due
    ), numbered AS (
        UPDATE lanes SET next_sequence = next_sequence + found.count,
                         events_open = events_open + found.count,
                         due_at = least(due_at, greatest(clock_timestamp(), paused_until))
          FROM (SELECT count(place) AS count FROM placed) AS found
         WHERE tenant_id = tenant AND webhook_id = webhook
           AND version = (SELECT version FROM present) AND found.count > 0
    ), hour AS (
        SELECT accepted_hour(placed.created_at) AS at, count(*) AS accepted
          FROM placed WHERE placed.place IS NOT NULL GROUP BY 1
    ), known AS (
        UPDATE delivery_hours AS h
           SET accepted = h.accepted + hour.accepted, version = h.version + 1
          FROM hour CROSS JOIN LATERAL (
            SELECT n.ctid AS place FROM delivery_hours AS n
             WHERE n.tenant_id = tenant AND n.at = hour.at AND n.webhook_id = webhook
             ORDER BY n.version DESC LIMIT 1) AS newest
         WHERE h.ctid = newest.place
        RETURNING h.at
    ), accepted AS (
        INSERT INTO delivery_hours (tenant_id, at, webhook_id, accepted)
        SELECT tenant, at, webhook, accepted FROM hour WHERE at NOT IN (SELECT at FROM known)
    ), taken AS (
        UPDATE open_deliveries AS d
           SET sequence = coalesce(d.sequence, present.next_sequence - 1 + placed.place),
               claims_lost = claims_lost + placed.taken_over::int, status = 'sending',
               claim_no = claim_no + 1, lease_until = clock_timestamp() + lease
          FROM placed, present
         WHERE d.ctid = placed.at
        RETURNING d AS delivery, d.id, placed.taken_over
    )
    SELECT array_agg(delivery), array_agg(taken.id) FILTER (WHERE taken.taken_over)
      INTO claimed, lost FROM taken;
    IF claimed IS NOT NULL THEN
        RETURN QUERY EXECUTE $payloads$
            SELECT d.id, d.event_id, d.kind, d.priority, d.sequence, d.attempts, d.unscheduled,
                   d.claim_no, d.claims_lost, coalesce(d.id = ANY ($1), false), d.created_at,
                   e.payload
              FROM unnest($2) AS d
              JOIN events AS e ON e.id = d.event_id
             WHERE e.tenant_id = $3 AND e.id = ANY ($4)
            $payloads$
            USING lost, claimed, tenant, ARRAY(SELECT d.event_id FROM unnest(claimed) AS d);
    END IF;
END $$;
