-- Stores the findings of several requests, of one tenant or of many, and emits `finding.created` for
-- each: those of a request all or none, whatever becomes of the others, in one round trip.
-- Called by app/core/findings.py (`add_each`).
--
-- first_wait              how long each delivery waits before its first attempt
-- largest                 the most bytes that an event's payload may have
-- tenants                 those of the requests, each once, in an order that is the same for all callers
-- requests                a JSON array, one object for each request: `tenant`; `key`, the API key to
--                         check again, or null for a caller who is confirmed; `pin_agent` and
--                         `pin_person`, the caller's pin, or null: sessions and records outside it do
--                         not exist; `source`, where its findings came from
-- fresh                   a JSON array of all findings; `asked` is the place of its request, from 1,
--                         and app/core/findings.py (`_fresh`) has the other fields
--
-- A row for each request, in no order:
-- asked                   its place
-- problem                 null, or why nothing of it was stored: `key`, `session`, `record`, `size`
-- place, size             the first finding refused, from 1 among all, and its payload's bytes
-- lanes                   the webhooks of its tenant to wake, or null
-- body                    its findings as they were stored, as a JSON array
--
-- Row-level security binds every row to the tenant of its request: `app.tenant_id` is set for each
-- tenant before its rows are read or written. What starts an executor costs some 30 µs a call, so
-- what a plain expression can tell is not asked by a statement.
-- An event repeats nothing of its finding: its payload is made when it is read (`events`). The
-- tenant's digest series is read after the statements that may wait for a lock, so an address set
-- meanwhile counts.
CREATE OR REPLACE FUNCTION add_findings(
    first_wait interval, largest integer, tenants uuid[], requests json, fresh json)
RETURNS TABLE (asked integer, problem text, place integer, size integer, lanes uuid[], body text)
LANGUAGE plpgsql
SET lock_timeout = '2s'
-- A plan made while a table was small must not read all of it when it has grown.
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    tenant uuid;
    moment timestamptz;
    written text;
    micros bigint;
    first_half bigint;
    head text;
    found record;
    refused integer[];
    woken uuid[];
BEGIN
    FOREACH tenant IN ARRAY tenants LOOP
        PERFORM set_config('app.tenant_id', tenant::text, true);
        moment := clock_timestamp();
        written := written_time(moment);
        micros := extract(epoch FROM moment) * 1000000;
        first_half := (micros / 1000 << 16) | (7 << 12);
        head := lpad(to_hex(first_half | (micros % 1000 << 12) / 1000), 16, '0');

        SELECT array_agg(asked) AS asked, array_agg(n) AS places, array_agg(problem) AS problems,
               array_agg(sessions_id) AS sessions, array_agg(record_id) AS records,
               array_agg(agent_id) AS agents, array_agg(principal) AS principals,
               array_agg(rule) AS rules, array_agg(severity) AS severities,
               array_agg(source) AS sources, array_agg(title) AS titles,
               array_agg(detail) AS details, array_agg(data) AS datas, array_agg(body) AS bodies,
               array_agg(finding_id::uuid) AS ids, array_agg(event_id::uuid) AS events,
               array_agg(length(finding_payload(body, event_id::uuid, written))) AS sizes
          INTO found
          FROM (SELECT new.*, sessions_id, agent_id, principal, finding_id, event_id,
                       CASE WHEN NOT asking.is_valid THEN 'key' WHEN agent_id IS NOT NULL THEN NULL
                            WHEN record_id IS NULL THEN 'session' ELSE 'record' END AS problem,
                       source,
                       finding_body(agent_id, written, data, detail, finding_id::uuid, principal,
                                    record_id, rule, sessions_id, severity, source, new.title)
                           AS body
                  FROM ROWS FROM (json_to_recordset(fresh) AS (
                           asked integer, session_id uuid, record_id uuid, rule text, severity text,
                           title text, detail text, data text, finding_tail text, event_tail text))
                           WITH ORDINALITY
                       AS new (asked, session_id, record_id, rule, severity, title, detail, data,
                               finding_tail, event_tail, n)
                  JOIN (SELECT n::integer AS asked, pin_agent, pin_person, source,
                               key IS NULL OR EXISTS (
                                   SELECT FROM api_keys
                                    WHERE tenant_id = tenant AND id = key AND revoked_at IS NULL
                                      AND (expires_at IS NULL OR expires_at > moment)) AS is_valid
                          FROM ROWS FROM (json_to_recordset(requests) AS (
                                   tenant uuid, key uuid, pin_agent uuid, pin_person text,
                                   source text)) WITH ORDINALITY
                               AS request (of_tenant, key, pin_agent, pin_person, source, n)
                         WHERE of_tenant = tenant
                        OFFSET 0) AS asking USING (asked)
                  LEFT JOIN LATERAL (
                           SELECT id AS sessions_id, agent_id, principal FROM sessions
                            WHERE is_valid AND new.record_id IS NULL AND tenant_id = tenant
                              AND id = new.session_id
                              AND (pin_agent IS NULL
                                   OR (agent_id = pin_agent AND principal = pin_person))
                           UNION ALL
                           SELECT session_id, agent_id, principal FROM records
                            WHERE is_valid AND new.record_id IS NOT NULL AND tenant_id = tenant
                              AND id = new.record_id
                              AND (new.session_id IS NULL OR session_id = new.session_id)
                              AND (pin_agent IS NULL
                                   OR (agent_id = pin_agent AND principal = pin_person))
                           OFFSET 0) AS session ON true
                 -- Their place stands where the millisecond's fraction would: deliveries sort by it.
                 CROSS JOIN LATERAL (
                           SELECT head || finding_tail AS finding_id,
                                  lpad(to_hex(first_half | n), 16, '0') || event_tail AS event_id
                       ) AS named
                 ORDER BY n) AS new;
        refused := '{}';
        IF array_remove(found.problems, NULL) <> '{}' OR largest < ANY (found.sizes) THEN
            SELECT array_agg(DISTINCT asked) INTO refused
              FROM unnest(found.asked, found.problems, found.sizes) AS new (asked, problem, size)
             WHERE problem IS NOT NULL OR new.size > largest;
        END IF;

        INSERT INTO findings (tenant_id, id, session_id, record_id, agent_id, principal, rule,
                              severity, source, title, detail, data_json, created_at, digest_id)
        SELECT tenant, id, session, record, agent, person, rule, severity, source, title, detail,
               data, moment, (SELECT digest_series FROM tenants WHERE id = tenant)
          FROM unnest(found.asked, found.ids, found.sessions, found.records, found.agents,
                      found.principals, found.rules, found.severities, found.sources, found.titles,
                      found.details, found.datas)
               AS new (asked, id, session, record, agent, person, rule, severity, source, title,
                       detail, data)
         WHERE asked <> ALL (refused);
        IF refused = '{}' THEN
            woken := emit_events(tenant, 'finding.created', found.events, NULL, found.ids, moment,
                                 first_wait, NULL, found.sessions);
        ELSE
            SELECT emit_events(tenant, 'finding.created', array_agg(event), NULL, array_agg(id),
                               moment, first_wait, NULL, array_agg(session)) INTO woken
              FROM unnest(found.asked, found.events, found.ids, found.sessions)
                   AS new (asked, event, id, session)
             WHERE asked <> ALL (refused) HAVING count(*) > 0;
        END IF;

        IF refused <> '{}' THEN
            RETURN QUERY
            SELECT DISTINCT ON (asked) asked, coalesce(problem, 'size'), n::integer,
                   new.size, NULL::uuid[], NULL
              FROM unnest(found.asked, found.problems, found.places, found.sizes)
                   AS new (asked, problem, n, size)
             WHERE problem IS NOT NULL OR new.size > largest
             ORDER BY asked, problem IS NULL, n;
        END IF;
        RETURN QUERY
        SELECT new.asked, NULL, NULL::integer, NULL::integer, woken,
               '[' || string_agg(body, ',' ORDER BY n) || ']'
          FROM unnest(found.asked, found.places, found.bodies) AS new (asked, n, body)
         WHERE new.asked <> ALL (refused) GROUP BY new.asked;
    END LOOP;
END $$;
