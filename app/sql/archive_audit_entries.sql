-- Empties the bodies of entries of an audit chain that a segment in `audit_segments` holds: the
-- service's role may neither change nor delete an entry otherwise.
-- Called by app/core/erasure/archiving.py, in the transaction that wrote the segment and its entry
-- `audit.archive`.
--
-- tenant, first, last     whose entries, from one number to another
-- digest                  the SHA-256 of all their bodies, a newline behind each: that of the segment
--
-- Hash and link stay, and so do the copies to filter by. `settings.update` keeps its body: it says
-- since when the chain is anchored, which is asked often.
CREATE OR REPLACE FUNCTION archive_audit_entries(
    tenant uuid, first bigint, last bigint, digest bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
DECLARE
    found bytea;
    many bigint;
BEGIN
    SELECT sha256(string_agg(body || '\x0a'::bytea, ''::bytea ORDER BY seq)), count(body)
      INTO found, many
      FROM audit_entries WHERE tenant_id = tenant AND seq BETWEEN first AND last;
    IF found IS DISTINCT FROM digest OR many <> last - first + 1 OR NOT EXISTS (
           SELECT FROM audit_segments AS s
            WHERE s.tenant_id = tenant AND s.first_seq = first AND s.last_seq = last
              AND s.sha256 = digest) THEN
        RAISE EXCEPTION 'no segment holds the entries % to %', first, last
              USING ERRCODE = 'data_exception';
    END IF;
    UPDATE audit_entries SET body = NULL
     WHERE tenant_id = tenant AND seq BETWEEN first AND last AND action <> 'settings.update';
END $$;
