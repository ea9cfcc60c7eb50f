-- Trigger on `webhooks`, after each row's INSERT, DELETE or change of `status`, `deleted_at` or `lanes`:
-- keeps in `webhook_counts` how many of each status there are, and how many lanes they have, for app/core/health/gauges.py, which must not
-- read them all. The sum is spread over 16 shards by backend, so that writers do not wait for one row.
-- No arguments.
CREATE OR REPLACE FUNCTION count_webhooks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO webhook_counts AS c (status, shard, webhooks, lanes)
    SELECT status, pg_backend_pid() % 16, sum(one), sum(lanes)
      FROM (SELECT OLD.status, -1 AS one, -OLD.lanes AS lanes
             WHERE TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL
            UNION ALL
            SELECT NEW.status, 1, NEW.lanes
             WHERE TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL) AS changes
     GROUP BY status HAVING sum(one) <> 0 OR sum(lanes) <> 0 ORDER BY status
    ON CONFLICT (status, shard) DO UPDATE
       SET webhooks = c.webhooks + excluded.webhooks, lanes = c.lanes + excluded.lanes;
    RETURN NULL;
END $$;
