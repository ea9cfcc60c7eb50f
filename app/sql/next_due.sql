-- Returns when a webhook's open deliveries are due next: the urgent ones, and all others.
-- Called by app/core/delivery/lanes/lanes.py (`reschedule`), which has locked the lane.
--
-- tenant, webhook         the lane
--
-- Of each level this is the first row that no worker holds; where that is not due, also the first
-- lease to end: all that is due is held then, so few rows are read. Sequential scans and sorts are
-- off: while an old snapshot stands, a table with few rows is large.
CREATE OR REPLACE FUNCTION next_due(
    tenant uuid, webhook uuid, OUT urgent timestamptz, OUT patient timestamptz)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    begins timestamptz[];
    present timestamptz := clock_timestamp();
BEGIN
    SELECT open_from INTO begins FROM present_lanes
     WHERE tenant_id = tenant AND webhook_id = webhook;
    SELECT min(at) FILTER (WHERE priority = 0), min(at) FILTER (WHERE priority > 0)
      INTO urgent, patient
      FROM (SELECT level.priority, CASE WHEN free.at <= present THEN free.at
                                        ELSE least(free.at, (
                       SELECT min(held.lease_until) FROM (
                           SELECT d.lease_until FROM open_deliveries AS d
                        WHERE d.tenant_id = tenant AND d.webhook_id = webhook
                          AND d.priority = level.priority AND d.fresh = level.fresh
                          AND d.next_attempt_at >= begins[level.place]
                          AND d.next_attempt_at <= present AND d.lease_until > present
                        ORDER BY d.next_attempt_at OFFSET 0) AS held)) END AS at
              FROM open_levels() AS level
              LEFT JOIN LATERAL (
                SELECT d.next_attempt_at AS at FROM open_deliveries AS d
                 WHERE d.tenant_id = tenant AND d.webhook_id = webhook
                   AND d.priority = level.priority AND d.fresh = level.fresh
                   AND d.next_attempt_at >= begins[level.place]
                   AND (d.lease_until IS NULL OR d.lease_until <= present)
                 ORDER BY d.next_attempt_at LIMIT 1) AS free ON true) AS earliest;
END $$;
