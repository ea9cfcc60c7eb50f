-- Returns a moment from which on rows may still appear: each transaction that writes and has not
-- ended began after it, so what is dated earlier is there for the next statement, or never.
-- Called by `claim_deliveries` and app/core/delivery/sweeping.py, in a statement before the one that
-- reads. No arguments.
--
-- Of another role's session the start is not told: it counts as the earliest.
CREATE OR REPLACE FUNCTION settled_before() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT least(now(), min(coalesce(xact_start, 'epoch'))) FROM pg_stat_activity
     WHERE datname = current_database() AND backend_xid IS NOT NULL
$$;
