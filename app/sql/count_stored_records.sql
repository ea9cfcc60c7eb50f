-- Trigger on `bundles` and `export_parts`, after INSERT and after DELETE, for each statement: adds to
-- `stored_records`, or subtracts, how many records and bytes a tenant has stored. The sum is spread
-- over 16 shards by backend, so that writers do not wait for one row. Read by
-- app/core/records/bundles.py. No arguments.
CREATE OR REPLACE FUNCTION count_stored_records() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    sign integer := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
    INSERT INTO stored_records AS s (tenant_id, shard, records, bytes)
    SELECT c.tenant_id, pg_backend_pid() % 16,
           CASE WHEN sign = 1 AND TG_TABLE_NAME = 'bundles' THEN count(*) ELSE 0 END,
           sign * sum(c.size)
      FROM changed AS c GROUP BY c.tenant_id ORDER BY c.tenant_id
    ON CONFLICT (tenant_id, shard) DO UPDATE
       SET records = s.records + excluded.records, bytes = s.bytes + excluded.bytes;
    RETURN NULL;
END $$;
