-- Stores events of one type and moment, and a delivery for each webhook that wants them; returns
-- those webhooks' lanes, or null.
-- Called by app/core/delivery/events.py (`emit`), `add_findings` and `emit_followed`.
--
-- tenant                  whose events
-- kind                    their type
-- identifiers, payloads   their ids and bodies, in the same order; of findings no bodies (null)
-- subjects                the finding or session that each is about, or null
-- moment                  when they happened
-- first_wait              how long each delivery waits before its first attempt
-- not_to                  a webhook that gets none (an event about itself), or null
-- sessions                the session of each, or null: where a webhook has several lanes, all of a
--                         session go by one; what has none goes by its subject or its own id
--
-- A webhook without types wants all but those that few ask for. That numbers begin anew concerns each.
--
-- A decision is 17 bytes: the webhook's id, and 1 for matched, 2 for filtered, 3 for disabled
-- (app/core/delivery/history/decisions.py).
CREATE OR REPLACE FUNCTION emit_events(
    tenant uuid, kind text, identifiers uuid[], payloads bytea[], subjects uuid[],
    moment timestamptz, first_wait interval, not_to uuid, sessions uuid[] DEFAULT NULL)
RETURNS uuid[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    decided bytea;
    is_disabled boolean;
    chosen uuid[];
    widths smallint[];
BEGIN
    SELECT coalesce(string_agg(uuid_send(id) || code, ''), ''),
           coalesce(bool_or(code = '\x03'), false),
           array_agg(id) FILTER (WHERE code = '\x01'),
           array_agg(lanes) FILTER (WHERE code = '\x01')
      INTO decided, is_disabled, chosen, widths
      FROM (SELECT id, lanes, CASE WHEN kind <> 'history.rolled_back'
                                        AND (kind <> ALL (event_types)
                                             OR (event_types IS NULL
                                                 AND kind IN ('record.created', 'session.opened')))
                            THEN '\x02'::bytea
                            WHEN status = 'disabled' THEN '\x03' ELSE '\x01' END AS code
              FROM webhooks
             WHERE tenant_id = tenant AND deleted_at IS NULL AND id IS DISTINCT FROM not_to
           ) AS decision;
    INSERT INTO stored_events
           (tenant_id, id, type, payload, subject_id, decisions, any_disabled, created_at)
    SELECT tenant, fresh.id, kind, fresh.payload, fresh.subject, decided, is_disabled, moment
      FROM unnest(identifiers, payloads, subjects) AS fresh (id, payload, subject);
    -- Priority 1: live events.
    IF 1 = ALL (widths) THEN
        INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind,
                                     priority, fresh, next_attempt_at)
        SELECT tenant, id_beside(event_id), webhook_id, event_id, kind, 'event', 1, true,
               clock_timestamp() + first_wait
          FROM unnest(identifiers) AS event_id, unnest(chosen) AS webhook_id;
    ELSIF chosen IS NOT NULL THEN
        WITH made AS (
            INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind,
                                         priority, fresh, next_attempt_at)
            SELECT tenant, id_beside(event_id),
                   lane_of(webhook_id, 1 + (uuid_hash(coalesce(session, subject, event_id))
                                            & 2147483647) % width),
                   event_id, kind, 'event', 1, true, clock_timestamp() + first_wait
              FROM unnest(identifiers, subjects, sessions) AS fresh (event_id, subject, session),
                   unnest(chosen, widths) AS webhook (webhook_id, width)
            RETURNING webhook_id
        )
        SELECT array_agg(DISTINCT webhook_id) INTO chosen FROM made;
    END IF;
    RETURN chosen;
END $$;
