-- Returns the lanes of all tenants whose events wait for a sequence number, and since when.
-- Called by app/core/delivery/sweeping.py. No arguments.
--
-- One index probe a lane, however many rows wait in each (a loose index scan).
CREATE OR REPLACE FUNCTION unnumbered_lanes()
RETURNS TABLE (tenant_id uuid, webhook_id uuid, oldest timestamptz)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET max_parallel_workers_per_gather = 0 AS $$
    WITH RECURSIVE unnumbered AS (
        (SELECT d.tenant_id, d.webhook_id, d.created_at FROM deliveries AS d
          WHERE d.sequence IS NULL AND d.kind = 'event'
          ORDER BY d.tenant_id, d.webhook_id, d.id LIMIT 1)
        UNION ALL
        SELECT beyond.tenant_id, beyond.webhook_id, beyond.created_at
          FROM unnumbered AS u
         CROSS JOIN LATERAL (
            SELECT d.tenant_id, d.webhook_id, d.created_at FROM deliveries AS d
             WHERE d.sequence IS NULL AND d.kind = 'event'
               AND (d.tenant_id, d.webhook_id) > (u.tenant_id, u.webhook_id)
             ORDER BY d.tenant_id, d.webhook_id, d.id LIMIT 1) AS beyond
    )
    SELECT tenant_id, webhook_id, created_at FROM unnumbered
$$;
