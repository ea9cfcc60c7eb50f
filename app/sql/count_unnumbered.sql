-- Counts a webhook's event deliveries that have no sequence number yet, from their partial index.
-- Called by app/core/delivery/accounting.py and cancelling.py.
--
-- tenant, webhook         the lane
CREATE OR REPLACE FUNCTION count_unnumbered(tenant uuid, webhook uuid) RETURNS bigint
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET max_parallel_workers_per_gather = 0 AS $$
    SELECT count(*) FROM deliveries
     WHERE tenant_id = tenant AND webhook_id = webhook AND sequence IS NULL AND kind = 'event'
$$;
