-- Returns the payload of a finding's event: canonical JSON, as `events.payload` makes it.
-- Called by `add_findings`, for its size, and by the view `events`.
--
-- body                    what `finding_body` returns
-- event                   the event's id
-- written                 the moment of both, as text
CREATE OR REPLACE FUNCTION finding_payload(body text, event uuid, written text) RETURNS bytea
LANGUAGE sql STABLE AS $$
    SELECT convert_to('{"data":' || body || ',"id":"evt_' || encode(uuid_send(event), 'hex')
                      || '","timestamp":"' || written || '","type":"finding.created"}', 'UTF8')
$$;
