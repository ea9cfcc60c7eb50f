"""Appending to an audit chain is one call: the lock, the time, the entry and the head.

The function runs with the rights of whoever calls it, so row-level security binds it too. It is
added beside the statements of the release before, which may go on running.
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

APPEND = r"""
-- Appends an entry to a tenant's audit chain and returns its number and hash: the chain's new head;
-- nulls where the tenant has no chain.
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
    SELECT seq + 1, hash INTO number, link FROM audit_heads WHERE tenant_id = tenant FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- Not before the lock is held: so `at` rises with `seq`.
    moment := clock_timestamp();
    written := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    whole := until_time || convert_to(written, 'UTF8')
          || until_link || convert_to(encode(link, 'hex'), 'UTF8')
          || until_number || convert_to(number::text, 'UTF8') || rest;
    digest := sha256(whole);
    INSERT INTO audit_entries (tenant_id, seq, body, hash, action, at)
    VALUES (tenant, number, whole, digest, kind, moment);
    UPDATE audit_heads SET seq = number, hash = digest WHERE tenant_id = tenant;
END $$;
"""


def upgrade() -> None:
    """Add the function."""
    op.execute(APPEND)
