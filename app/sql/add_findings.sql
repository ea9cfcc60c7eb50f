-- Stores findings and emits `finding.created` for each, all or none, in one round trip.
-- Called by app/core/findings.py (`add`).
--
-- tenant                  becomes `app.tenant_id`, so row-level security binds what follows
-- key_used                the API key to check again, or null for a caller who is confirmed
-- pin_agent, pin_person   the caller's pin, or null: sessions and records outside it do not exist
-- first_wait              how long each delivery waits before its first attempt
-- largest                 the most bytes that an event's payload may have
-- origin                  where they came from: `api`, `otlp` or `rule`
-- fresh                   a JSON array; app/core/findings.py (`_fresh`) has its fields
-- problem                 null, or why nothing was stored: `key`, `session`, `record` or `size`
-- place, size             the first finding refused, from 1, and its payload's bytes
-- lanes                   the webhooks to wake, or null
-- body                    the findings stored, as a JSON array
--
-- `body`, and `data` of each event, are what `findings.represent` answers, as canonical JSON (RFC
-- 8785); tests/core/delivery/test_add_findings.py compares them. The tenant's digest series is read after
-- the statements that may wait for a lock, so an address set meanwhile counts.
CREATE OR REPLACE FUNCTION add_findings(
    tenant uuid, key_used uuid, pin_agent uuid, pin_person text, first_wait interval,
    largest integer, origin text, fresh json,
    OUT problem text, OUT place bigint, OUT size integer, OUT lanes uuid[], OUT body text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    written text := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    micros bigint := extract(epoch FROM moment) * 1000000;
    first_half bigint := (micros / 1000 << 16) | (7 << 12);
    head text := lpad(to_hex(first_half | (micros % 1000 << 12) / 1000), 16, '0');
    sessions_found uuid[];
    agents uuid[];
    principals text[];
    bodies text[];
    finding_ids uuid[];
    event_ids uuid[];
    payloads bytea[];
    series uuid;
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
               || ',"source":' || to_json(origin)::text
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

    SELECT array_agg((head || finding_tail)::uuid ORDER BY n),
           array_agg(event_id::uuid ORDER BY n),
           array_agg(convert_to('{"data":' || written_body || ',"id":"evt_' || event_id
               || '","timestamp":"' || written || '","type":"finding.created"}', 'UTF8') ORDER BY n)
      INTO finding_ids, event_ids, payloads
      FROM ROWS FROM (json_to_recordset(fresh) AS (finding_tail text, event_tail text),
                      unnest(bodies))
           WITH ORDINALITY AS new (finding_tail, event_tail, written_body, n)
           -- Their place stands where the millisecond's fraction would: deliveries sort by it.
     CROSS JOIN LATERAL (
               SELECT lpad(to_hex(first_half | n), 16, '0') || event_tail AS event_id) AS named;
    SELECT n, length(payload) INTO place, size
      FROM unnest(payloads) WITH ORDINALITY AS event (payload, n)
     WHERE length(payload) > largest ORDER BY n LIMIT 1;
    IF place IS NOT NULL THEN
        problem := 'size';
        RETURN;
    END IF;

    SELECT digest_series INTO series FROM tenants WHERE id = tenant;
    INSERT INTO findings (tenant_id, id, session_id, record_id, agent_id, principal, rule, severity,
                          source, title, detail, data_json, created_at, digest_id)
    SELECT tenant, id, session, record_id::uuid, agent, person, rule, severity, origin, title, detail,
           data, moment, series
      FROM ROWS FROM (json_to_recordset(fresh) AS (
               record_id text, rule text, severity text, title text, detail text, data text),
               unnest(finding_ids, sessions_found, agents, principals))
           AS new (record_id, rule, severity, title, detail, data, id, session, agent, person);
    lanes := emit_events(
        tenant, 'finding.created', event_ids, payloads, finding_ids, moment, first_wait, NULL);
    body := '[' || array_to_string(bodies, ',') || ']';
END $$;
