-- Returns a finding as its GET answers it, and its event's `data`: canonical JSON (RFC 8785), as
-- `findings.represent`; tests/core/delivery/test_add_findings.py compares them.
-- Called by `add_findings`, and by the view `events`: so no event repeats its finding.
--
-- agent … title           the columns of `findings`; `data` is canonical JSON, `created_at` text
CREATE OR REPLACE FUNCTION finding_body(
    agent uuid, created_at text, data text, detail text, id uuid, principal text, record uuid,
    rule text, session uuid, severity text, source text, title text)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT '{"agent_id":"agt_' || encode(uuid_send(agent), 'hex')
           || '","created_at":"' || created_at
           || '","data":' || coalesce(data, 'null')
           || ',"detail":' || coalesce(to_json(detail)::text, 'null')
           || ',"id":"fnd_' || encode(uuid_send(id), 'hex')
           || '","principal":' || to_json(principal)::text
           || ',"record_id":'
           || coalesce('"rec_' || encode(uuid_send(record), 'hex') || '"', 'null')
           || ',"rule":' || to_json(rule)::text
           || ',"session_id":"ses_' || encode(uuid_send(session), 'hex')
           || '","severity":' || to_json(severity)::text
           || ',"source":' || to_json(source)::text
           || ',"title":' || to_json(title)::text || '}'
$$;
