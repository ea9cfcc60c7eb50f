"""What makes and drops history: for the service's role alone, and held to HISTORY_DAYS."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# One row, which `release` sets to HISTORY_DAYS; the service's role may read it.
POLICY = """
CREATE TABLE IF NOT EXISTS history_policy (
    id   boolean PRIMARY KEY DEFAULT true CHECK (id),
    days integer NOT NULL CHECK (days > 0)
);
INSERT INTO history_policy (days) VALUES (90) ON CONFLICT DO NOTHING;
"""

# The week's end is the partition's own, not what a name or a caller says; time is the database's.
# What may have read the week before the lock was had is looked at again behind it.
DROP = """
CREATE OR REPLACE FUNCTION drop_history_partition(parent text, lower_bound uuid)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    child text := history_partition(parent, lower_bound);
    before text := coalesce(current_setting('app.every_tenant', true), '');
    upper_bound uuid;
    kept_from timestamptz;
BEGIN
    SELECT substring(pg_get_expr(c.relpartbound, c.oid) FROM $re$TO \\('([^']+)'\\)$re$)::uuid
      INTO upper_bound
      FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
     WHERE inhparent = to_regclass('public.' || parent) AND c.oid = to_regclass('public.' || child);
    IF upper_bound IS NULL THEN
        RAISE EXCEPTION '% is no week of %', child, parent USING ERRCODE = 'undefined_table';
    END IF;
    SELECT clock_timestamp() - make_interval(days => days) INTO STRICT kept_from
      FROM history_policy;
    IF uuid_made_at(upper_bound) > kept_from THEN
        RAISE EXCEPTION '% holds what is younger than HISTORY_DAYS at the last release', child
              USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM set_config('app.every_tenant', 'on', true);
    PERFORM refuse_open_deliveries(parent, lower_bound, upper_bound);
    EXECUTE format('LOCK TABLE ONLY public.%I IN ACCESS EXCLUSIVE MODE', parent);
    PERFORM refuse_open_deliveries(parent, lower_bound, upper_bound);
    EXECUTE format('DROP TABLE public.%I', child);
    PERFORM set_config('app.every_tenant', before, true);
END $$;
"""

HELPERS = """
CREATE OR REPLACE FUNCTION uuid_made_at(id uuid) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
$$;

CREATE OR REPLACE FUNCTION refuse_open_deliveries(parent text, lower_bound uuid, upper_bound uuid)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found_open boolean := false;
BEGIN
    IF parent = 'deliveries' THEN
        SELECT EXISTS (SELECT FROM public.deliveries
                        WHERE id >= lower_bound AND id < upper_bound AND finished_at IS NULL)
          INTO found_open;
    ELSIF parent = 'events' THEN
        SELECT EXISTS (SELECT FROM public.deliveries
                        WHERE event_id >= lower_bound AND event_id < upper_bound
                          AND finished_at IS NULL)
          INTO found_open;
    END IF;
    IF found_open THEN
        RAISE EXCEPTION 'a week of % has open deliveries', parent USING ERRCODE = 'object_in_use';
    END IF;
END $$;
"""

CLOSED = """
REVOKE EXECUTE ON FUNCTION make_history_partition(text, uuid, uuid) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION drop_history_partition(text, uuid) FROM PUBLIC;
"""


def upgrade() -> None:
    """Replace the function under the name and arguments that the release before calls.

    The service's role has its own grant on both since the release that made them.
    """
    for statements in (POLICY, HELPERS, DROP, CLOSED):
        op.execute(statements)
