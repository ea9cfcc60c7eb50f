-- Trigger on each table whose bytes may lie in the object store, after DELETE, for each statement:
-- whatever a deleted row named there is to be erased. Whoever deletes, a cascade too, forgets none.
-- Worked off by app/core/erasure/erasing.py. Arguments: the key's columns behind the tenant, the
-- owner's id and, where a row is a part of it, its number.
CREATE OR REPLACE FUNCTION forget_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM gone WHERE blob IS NOT NULL) THEN
        EXECUTE format(
            'INSERT INTO dead_blobs (tenant_id, blob, kind, owner_id, number)
             SELECT tenant_id, blob, %L, %I, %s FROM gone WHERE blob IS NOT NULL
                 ON CONFLICT DO NOTHING',
            TG_TABLE_NAME, TG_ARGV[0],
            CASE WHEN TG_NARGS > 1 THEN quote_ident(TG_ARGV[1]) ELSE '0' END);
    END IF;
    -- What stayed of the row for backups goes with it.
    IF EXISTS (SELECT FROM dead_blobs WHERE due_at > clock_timestamp()) THEN
        EXECUTE format(
            'UPDATE dead_blobs AS d SET due_at = clock_timestamp() FROM gone AS g
              WHERE d.tenant_id = g.tenant_id AND d.owner_id = g.%I AND d.number = %s
                AND d.kind = %L AND d.due_at > clock_timestamp()',
            TG_ARGV[0],
            CASE WHEN TG_NARGS > 1 THEN 'g.' || quote_ident(TG_ARGV[1]) ELSE '0' END,
            TG_TABLE_NAME);
    END IF;
    RETURN NULL;
END $$;
