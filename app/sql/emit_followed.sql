-- Trigger on `records` and `sessions` after INSERT, for each statement: emits `record.created` or
-- `session.opened` for each row, where a webhook of its tenant names that type; else it costs a look
-- into an index that is empty. The sweep rings the lanes. No arguments.
--
-- `data` is what `records.represent` and `sessions.represent` answer, as canonical JSON (RFC 8785);
-- tests/core/delivery/test_followed_events.py compares them.
CREATE OR REPLACE FUNCTION emit_followed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    followed text := CASE TG_TABLE_NAME WHEN 'records' THEN 'record.created'
                                        ELSE 'session.opened' END;
    moment timestamptz := clock_timestamp();
    written text := written_time(moment);
    first_half bigint :=
        ((extract(epoch FROM moment) * 1000000)::bigint / 1000 << 16) | (7 << 12);
    of_tenant uuid;
    subjects uuid[];
    sessions uuid[];
    bodies text[];
    event_ids uuid[];
    payloads bytea[];
BEGIN
    FOR of_tenant IN
        SELECT DISTINCT c.tenant_id FROM changed AS c
         WHERE EXISTS (SELECT FROM webhooks AS w
                        WHERE w.tenant_id = c.tenant_id AND w.deleted_at IS NULL
                          AND w.event_types && ARRAY['record.created', 'session.opened']
                          AND followed = ANY (w.event_types))
    LOOP
        IF followed = 'record.created' THEN
            SELECT array_agg(c.id ORDER BY c.id), array_agg(c.session_id ORDER BY c.id),
                   array_agg('{"agent_id":"agt_' || encode(uuid_send(c.agent_id), 'hex')
                       || '","bundle":{"expired":' || 'false,"key_id":' || to_json(c.key_id)::text
                       || ',"sha256":"' || encode(c.bundle_sha256, 'hex')
                       || '","signature":"' || translate(encode(c.signature, 'base64'), E'\n', '')
                       || '","size":' || c.bundle_size
                       || '},"created_at":"' || written_time(c.created_at)
                       || '","id":"rec_' || encode(uuid_send(c.id), 'hex')
                       || '","kind":' || to_json(c.kind)::text
                       || ',"labels":' || c.labels_json
                       || ',"log":{"index":' || 'null,"status":"pending"},"occurred_at":"'
                       || written_time(c.occurred_at)
                       || '","principal":' || to_json(c.principal)::text
                       || ',"session_id":"ses_' || encode(uuid_send(c.session_id), 'hex')
                       || '","title":' || to_json(c.title)::text || '}' ORDER BY c.id)
              INTO subjects, sessions, bodies FROM changed AS c WHERE c.tenant_id = of_tenant;
        ELSE
            SELECT array_agg(c.id ORDER BY c.id),
                   array_agg('{"agent_id":"agt_' || encode(uuid_send(c.agent_id), 'hex')
                       || '","completed_at":' || 'null,"created_at":"'
                       || written_time(c.created_at)
                       || '","external_id":' || coalesce(to_json(c.external_id)::text, 'null')
                       || ',"id":"ses_' || encode(uuid_send(c.id), 'hex')
                       || '","metadata":' || coalesce(c.metadata_json, 'null')
                       || ',"outcome":' || 'null,"principal":' || to_json(c.principal)::text
                       || ',"status":"open","summary":' || 'null,"title":'
                       || coalesce(to_json(c.title)::text, 'null') || '}' ORDER BY c.id)
              INTO subjects, bodies FROM changed AS c
             WHERE c.tenant_id = of_tenant AND c.status = 'open';
        END IF;
        SELECT array_agg(event_id::uuid ORDER BY n),
               array_agg(convert_to('{"data":' || body || ',"id":"evt_' || event_id
                   || '","timestamp":"' || written || '","type":"' || followed || '"}', 'UTF8')
                   ORDER BY n)
          INTO event_ids, payloads
          FROM unnest(bodies) WITH ORDINALITY AS new (body, n)
         CROSS JOIN LATERAL (
                   SELECT lpad(to_hex(first_half | (n & 4095)), 16, '0')
                          || right(encode(uuid_send(gen_random_uuid()), 'hex'), 16) AS event_id
               ) AS named;
        IF event_ids IS NOT NULL THEN
            PERFORM emit_events(of_tenant, followed, event_ids, payloads, subjects, moment,
                                interval '0', NULL, sessions);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
