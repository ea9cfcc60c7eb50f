"""Claiming deliveries is one call, whose plan the server keeps, also behind PgBouncer.

Planning the statement takes longer than running it: it names three partitioned tables. The function
runs with the rights of its caller, so row-level security binds it. It is added beside the
statement of the release before, which may go on running.
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

CLAIM = """
-- Leases up to `at_most` due deliveries of a webhook for `lease`: those of priority `lowest` and
-- more urgent ones, most urgent first, then the longest due. With a `slot_holder` only while that
-- holds one of the lane's slots. Priorities: 0 urgent, 1 live, 2 bulk (core/delivery/events.py).
-- The caller has locked the lane by a statement of its own: with a snapshot from before the lock,
-- two claims would leave gaps in the sequence.
-- An event's number is given here: one version of the row less. `placed` joins the event first, so
-- a row is counted only if it is written, and no number is left out.
-- A plan made while a table was small must not read all of it when it has grown: no sequential
-- scans, events by their keys (OFFSET 0 keeps the subquery apart), deliveries by theirs (ANY).
CREATE OR REPLACE FUNCTION claim_deliveries(
    tenant uuid, webhook uuid, slot_holder uuid, at_most integer, lowest smallint, lease interval)
RETURNS TABLE (
    id uuid, event_id uuid, kind text, priority smallint, sequence bigint, attempts smallint,
    unscheduled smallint, claim_no bigint, claims_lost smallint, taken_over boolean,
    created_at timestamptz, payload bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT picked.*
          FROM (VALUES (0), (1), (2)) AS level (priority)
         CROSS JOIN LATERAL (
            SELECT d.id, d.event_id, d.status = 'sending' AS taken_over,
                   d.sequence IS NULL AND d.kind = 'event' AS unnumbered
              FROM deliveries AS d
             WHERE d.tenant_id = tenant AND d.webhook_id = webhook
               AND d.priority = level.priority AND d.finished_at IS NULL
               AND d.next_attempt_at <= (SELECT clock_timestamp())
             ORDER BY d.next_attempt_at LIMIT at_most
               FOR NO KEY UPDATE SKIP LOCKED) AS picked
         WHERE level.priority <= lowest
           AND (slot_holder IS NULL OR EXISTS (
                SELECT FROM lane_slots AS s
                 WHERE s.tenant_id = tenant AND s.webhook_id = webhook
                   AND s.holder = slot_holder))
         LIMIT at_most
    ), placed AS MATERIALIZED (
        SELECT due.id, due.taken_over, e.payload,
               CASE WHEN due.unnumbered
                    THEN row_number() OVER (PARTITION BY due.unnumbered ORDER BY due.id)
                END AS place
          FROM due CROSS JOIN LATERAL (
            SELECT payload FROM events
             WHERE tenant_id = tenant AND id = due.event_id OFFSET 0) AS e
    ), numbered AS (
        UPDATE lanes SET next_sequence = next_sequence + found.count,
                         due_at = least(due_at, greatest(clock_timestamp(), paused_until))
          FROM (SELECT count(place) AS count FROM placed) AS found
         WHERE tenant_id = tenant AND webhook_id = webhook AND found.count > 0
    )
    UPDATE deliveries AS d
       SET sequence = coalesce(d.sequence, l.next_sequence - 1 + placed.place),
           claims_lost = claims_lost + placed.taken_over::int, status = 'sending',
           claim_no = claim_no + 1, next_attempt_at = clock_timestamp() + lease
      FROM placed, lanes AS l
     WHERE d.tenant_id = tenant AND d.id = placed.id
       AND d.id = ANY (ARRAY(SELECT id FROM placed))
       AND l.tenant_id = tenant AND l.webhook_id = webhook
    RETURNING d.id, d.event_id, d.kind, d.priority, d.sequence, d.attempts, d.unscheduled,
              d.claim_no, d.claims_lost, placed.taken_over, d.created_at, placed.payload;
END $$;
"""


def upgrade() -> None:
    """Add the function."""
    op.execute(CLAIM)
