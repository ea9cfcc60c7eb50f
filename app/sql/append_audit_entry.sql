-- Appends an entry to a tenant's audit chain; returns its number and hash, the chain's new head.
-- Called by app/core/audit/chain.py.
--
-- tenant                  whose chain
-- kind, who, subject, result
--                         the entry's action, the ids of actor and target, and outcome, to filter by
-- until_time, until_link, until_number, rest
--                         the entry's canonical JSON (RFC 8785) in four pieces. Between them go the
--                         time, the previous entry's hash and the number, which are known under the
--                         head's lock only (app/ledger/hash_chain.py)
-- number, digest          the new head. `digest` is null, and nothing written, where the head is
--                         damaged: `number` is then the number of the entry in the way, or the
--                         head's where no entry can follow it, or null without a head
--
-- Sequential scans are off: a plan made for a small table would be kept when it has grown.
CREATE OR REPLACE FUNCTION append_audit_entry(
    tenant uuid, kind text, who text, subject text, result text,
    until_time bytea, until_link bytea, until_number bytea, rest bytea,
    OUT number bigint, OUT digest bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    link bytea;
    moment timestamptz;
    written text;
    whole bytea;
BEGIN
    SELECT seq, hash INTO number, link FROM audit_heads WHERE tenant_id = tenant FOR UPDATE;
    -- Numbers are integers of I-JSON (RFC 7493 section 2.2).
    IF number IS NULL OR number NOT BETWEEN 0 AND 9007199254740990 THEN
        RETURN;
    END IF;
    number := number + 1;
    -- Not before the lock is held: so `at` rises with `seq`.
    moment := clock_timestamp();
    written := written_time(moment);
    whole := until_time || convert_to(written, 'UTF8')
          || until_link || convert_to(encode(link, 'hex'), 'UTF8')
          || until_number || convert_to(number::text, 'UTF8') || rest;
    INSERT INTO audit_entries (tenant_id, seq, body, hash, action, at, actor, target, outcome)
    VALUES (tenant, number, whole, sha256(whole), kind, moment, who, subject, result)
    ON CONFLICT (tenant_id, seq) DO NOTHING
    RETURNING hash INTO digest;
    IF digest IS NOT NULL THEN
        UPDATE audit_heads SET seq = number, hash = digest WHERE tenant_id = tenant;
    END IF;
END $$;
