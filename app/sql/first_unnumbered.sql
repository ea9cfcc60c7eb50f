-- Returns a webhook's oldest event deliveries that have no sequence number yet, by id.
-- Called by app/core/delivery/lanes/lanes.py, which numbers them.
--
-- tenant, webhook         the lane
-- at_most                 how many
CREATE OR REPLACE FUNCTION first_unnumbered(tenant uuid, webhook uuid, at_most bigint)
RETURNS SETOF uuid
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET max_parallel_workers_per_gather = 0 AS $$
    SELECT id FROM deliveries
     WHERE tenant_id = tenant AND webhook_id = webhook AND sequence IS NULL AND kind = 'event'
     ORDER BY id LIMIT at_most
$$;
