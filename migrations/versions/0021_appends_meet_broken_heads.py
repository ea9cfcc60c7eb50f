"""An append that meets a broken head of an audit chain says so, and aborts no transaction.

Only the function changes. The release before reads a null hash as an error of its own, as it did
the exceptions that this one no longer raises.
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

APPEND = r"""
-- Appends an entry to a tenant's audit chain and returns its number and hash: the chain's new head.
-- Where the head is none that an append left, it writes nothing and returns no hash: the number is
-- that of the entry in the way, or the head's where no entry can follow it; null without a head.
-- The entry's bytes come in four pieces. Between them go what is known under the head's lock only,
-- as the canonical JSON (RFC 8785) of the whole has it: the time, the hash of the entry before, and
-- the number (app/ledger/hash_chain.py).
-- A plan made while a table was small must not read all of it when it has grown.
CREATE OR REPLACE FUNCTION append_audit_entry(
    tenant uuid, kind text,
    until_time bytea, until_link bytea, until_number bytea, rest bytea,
    OUT number bigint, OUT digest bytea)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
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
    written := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    whole := until_time || convert_to(written, 'UTF8')
          || until_link || convert_to(encode(link, 'hex'), 'UTF8')
          || until_number || convert_to(number::text, 'UTF8') || rest;
    INSERT INTO audit_entries (tenant_id, seq, body, hash, action, at)
    VALUES (tenant, number, whole, sha256(whole), kind, moment)
    ON CONFLICT (tenant_id, seq) DO NOTHING
    RETURNING hash INTO digest;
    IF digest IS NOT NULL THEN
        UPDATE audit_heads SET seq = number, hash = digest WHERE tenant_id = tenant;
    END IF;
END $$;
"""


def upgrade() -> None:
    """Replace the function."""
    op.execute(APPEND)
