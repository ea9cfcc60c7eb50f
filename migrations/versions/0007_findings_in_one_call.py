"""Findings in one call: key, sessions, findings, events and deliveries in one round trip.

The functions run with the rights of whoever calls them, so row-level security binds them too. They
are added beside what the release before uses, which may go on running.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# plpgsql keeps the plans; planning costs more than executing (docs/performance.md).
EMIT = r"""
-- Stores events of one type and of one moment, each with a delivery for every webhook that wants
-- it; returns those webhooks. A decision is 17 bytes: the webhook's id, and 1 for matched, 2 for
-- filtered, 3 for disabled (app/core/delivery/history/decisions.py).
CREATE FUNCTION emit_events(
    tenant uuid, kind text, identifiers uuid[], payloads bytea[], moment timestamptz,
    first_wait interval, not_to uuid)
RETURNS uuid[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    decided bytea;
    is_disabled boolean;
    lanes uuid[];
BEGIN
    SELECT coalesce(string_agg(uuid_send(id) || code, ''), ''),
           coalesce(bool_or(code = '\x03'), false),
           array_agg(id) FILTER (WHERE code = '\x01')
      INTO decided, is_disabled, lanes
      FROM (SELECT id, CASE WHEN kind <> ALL (event_types) THEN '\x02'::bytea
                            WHEN status = 'disabled' THEN '\x03' ELSE '\x01' END AS code
              FROM webhooks
             WHERE tenant_id = tenant AND deleted_at IS NULL AND id IS DISTINCT FROM not_to
           ) AS decision;
    INSERT INTO events (tenant_id, id, type, payload, decisions, any_disabled, created_at)
    SELECT tenant, fresh.id, kind, fresh.payload, decided, is_disabled, moment
      FROM unnest(identifiers, payloads) AS fresh (id, payload);
    IF lanes IS NOT NULL THEN
        -- Priority 1: live events.
        INSERT INTO deliveries
               (tenant_id, id, webhook_id, event_id, event_type, kind, priority, next_attempt_at)
        SELECT tenant, id_beside(event_id), webhook_id, event_id, kind, 'event', 1,
               clock_timestamp() + first_wait
          FROM unnest(identifiers) AS event_id, unnest(lanes) AS webhook_id;
    END IF;
    RETURN lanes;
END $$;
"""

ADD = r"""
-- Adds findings, all or none, and emits `finding.created` for each, if the key used is still good
-- (null: that was asked before).
-- `fresh` is an array of objects: session_id or record_id, or both (32 hex digits, or null), rule,
-- severity, title, detail, data (canonical JSON as a text, or null), finding_tail (the random half
-- of the finding's id, ascending; the half made here carries the moment, RFC 9562, method 3), and
-- event_id (32 hex digits, each of a later moment than the one before: by that half of it
-- deliveries are numbered).
-- `body` is the findings as JSON, in canonical form (RFC 8785): members in order, and to_json
-- escapes a string exactly as that asks. Or `problem` says why nothing was done: key, session or
-- record (that of the finding at `place`, from 1) or size (of the event of that finding).
CREATE FUNCTION add_findings(
    tenant uuid, key_used uuid, pin_agent uuid, pin_person text, first_wait interval,
    largest integer, fresh json,
    OUT problem text, OUT place bigint, OUT size integer, OUT lanes uuid[], OUT body text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    written text := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    micros bigint := extract(epoch FROM moment) * 1000000;
    head text := lpad(
        to_hex((micros / 1000 << 16) | (7 << 12) | (micros % 1000 << 12) / 1000), 16, '0');
    sessions_found uuid[];
    agents uuid[];
    principals text[];
    bodies text[];
    event_ids uuid[];
    payloads bytea[];
BEGIN
    -- A plan made while a table was small must not read all of it when it has grown.
    PERFORM set_config('app.tenant_id', tenant::text, true),
            set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true);
    IF key_used IS NOT NULL AND NOT EXISTS (
           SELECT FROM api_keys
            WHERE tenant_id = tenant AND id = key_used AND revoked_at IS NULL
              AND (expires_at IS NULL OR expires_at > moment)) THEN
        problem := 'key';
        RETURN;
    END IF;

    SELECT min(n) FILTER (WHERE agent_id IS NULL), array_agg(found ORDER BY n),
           array_agg(agent_id ORDER BY n), array_agg(principal ORDER BY n),
           array_agg('{"agent_id":"agt_' || encode(uuid_send(agent_id), 'hex')
               || '","created_at":"' || written
               || '","data":' || coalesce(data, 'null')
               || ',"detail":' || coalesce(to_json(detail)::text, 'null')
               || ',"id":"fnd_' || head || finding_tail
               || '","principal":' || to_json(principal)::text
               || ',"record_id":' || coalesce('"rec_' || record_id || '"', 'null')
               || ',"rule":' || to_json(rule)::text
               || ',"session_id":"ses_' || encode(uuid_send(found), 'hex')
               || '","severity":' || to_json(severity)::text
               || ',"title":' || to_json(new.title)::text || '}' ORDER BY n)
      INTO place, sessions_found, agents, principals, bodies
      FROM ROWS FROM (json_to_recordset(fresh) AS (
               session_id text, record_id text, rule text, severity text, title text, detail text,
               data text, finding_tail text)) WITH ORDINALITY
           AS new (session_id, record_id, rule, severity, title, detail, data, finding_tail, n)
      LEFT JOIN LATERAL (
               SELECT id AS found, agent_id, principal FROM sessions
                WHERE new.record_id IS NULL AND tenant_id = tenant AND id = new.session_id::uuid
                  AND (pin_agent IS NULL OR (agent_id = pin_agent AND principal = pin_person))
               UNION ALL
               SELECT session_id, agent_id, principal FROM records
                WHERE new.record_id IS NOT NULL AND tenant_id = tenant
                  AND id = new.record_id::uuid
                  AND (new.session_id IS NULL OR session_id = new.session_id::uuid)
                  AND (pin_agent IS NULL OR (agent_id = pin_agent AND principal = pin_person))
               OFFSET 0) AS session ON true;
    IF place IS NOT NULL THEN
        problem := CASE WHEN fresh -> (place - 1)::integer ->> 'record_id' IS NULL
                        THEN 'session' ELSE 'record' END;
        RETURN;
    END IF;

    SELECT array_agg(event_id::uuid ORDER BY n),
           array_agg(convert_to('{"data":' || written_body || ',"id":"evt_' || event_id
               || '","timestamp":"' || written || '","type":"finding.created"}', 'UTF8') ORDER BY n)
      INTO event_ids, payloads
      FROM ROWS FROM (json_to_recordset(fresh) AS (event_id text), unnest(bodies))
           WITH ORDINALITY AS new (event_id, written_body, n);
    SELECT n, length(payload) INTO place, size
      FROM unnest(payloads) WITH ORDINALITY AS event (payload, n)
     WHERE length(payload) > largest ORDER BY n LIMIT 1;
    IF place IS NOT NULL THEN
        problem := 'size';
        RETURN;
    END IF;

    INSERT INTO findings (tenant_id, id, session_id, record_id, agent_id, principal, rule, severity,
                          title, detail, data_json, created_at)
    SELECT tenant, (head || finding_tail)::uuid, session, record_id::uuid, agent, person, rule,
           severity, title, detail, data, moment
      FROM ROWS FROM (json_to_recordset(fresh) AS (
               record_id text, rule text, severity text, title text, detail text, data text,
               finding_tail text), unnest(sessions_found, agents, principals))
           AS new (record_id, rule, severity, title, detail, data, finding_tail, session, agent,
                   person);
    lanes := emit_events(tenant, 'finding.created', event_ids, payloads, moment, first_wait, NULL);
    body := '[' || array_to_string(bodies, ',') || ']';
END $$;
"""


def upgrade() -> None:
    """Add the functions."""
    op.execute(EMIT)
    op.execute(ADD)
