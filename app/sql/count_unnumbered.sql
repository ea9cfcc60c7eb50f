-- Counts a webhook's event deliveries that have no sequence number yet.
-- Called by app/core/delivery/accounting.py and cancelling.py.
--
-- tenant, webhook         the lane
CREATE OR REPLACE FUNCTION count_unnumbered(tenant uuid, webhook uuid) RETURNS bigint
LANGUAGE sql STABLE SET enable_seqscan = off SET jit = off SET enable_bitmapscan = off
SET max_parallel_workers_per_gather = 0 AS $$
    SELECT count(*)
      FROM (SELECT open_from FROM present_lanes WHERE tenant_id = tenant AND webhook_id = webhook) AS lane
     CROSS JOIN open_levels() AS level
      JOIN open_deliveries AS d
        ON d.tenant_id = tenant AND d.webhook_id = webhook AND d.priority = level.priority
       AND d.fresh AND d.next_attempt_at >= open_from[level.place]
     WHERE level.fresh AND d.sequence IS NULL
$$;
