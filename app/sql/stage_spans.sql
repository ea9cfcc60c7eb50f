-- Stages spans that exporters sent, each once, and notes when to look at their traces: one round trip.
-- Called by app/core/traces/staging.py.
--
-- tenant                   becomes `app.tenant_id`, so row-level security binds what follows
-- keys_used                the API keys to check again
-- scope, pin_agent, pin_person  the pin that all of these keys have; zero and nulls for none
-- count_staged             whether to count the tenant's staged bytes
-- traces_sent              an array of JSON: the traces of each key's spans, by
--                          app/core/traces/staging.py
-- trace_ids to resources, sent_by   the spans, one a place; `resources`
--                          counts in `resource_bodies` from 1, `sent_by` in `keys_used`
-- bad_keys                 those of the keys that are not valid: nothing of theirs was stored
-- staged                   the tenant's staged bytes, or null
--
-- A trace's row is locked before its spans are: an assembly that commits meanwhile has then noted
-- in `assembled` which of them it took.
CREATE OR REPLACE FUNCTION stage_spans(
    tenant uuid, keys_used uuid[], scope uuid, pin_agent uuid, pin_person text,
    count_staged boolean, traces_sent json, trace_ids bytea[], span_ids bytea[], roots boolean[],
    ends boolean[], starts bigint[], bodies bytea[], resources integer[],
    resource_bodies bytea[], sent_by integer[],
    OUT bad_keys uuid[], OUT staged bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz;
BEGIN
    -- A plan made while a table was small must not read all of it when it has grown.
    PERFORM set_config('app.tenant_id', tenant::text, true),
            set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true),
            set_config('jit', 'off', true);
    SELECT array_agg(used) INTO bad_keys FROM unnest(keys_used) AS used
     WHERE NOT EXISTS (SELECT FROM api_keys
                        WHERE tenant_id = tenant AND id = used AND revoked_at IS NULL
                          AND (expires_at IS NULL OR expires_at > clock_timestamp()));

    -- In one order, so that two requests with the same traces do not wait for each other.
    INSERT INTO traces (tenant_id, pin, trace_id, id, pin_agent_id, pin_principal, status, service,
                        exporter)
    SELECT tenant, scope, decode(trace_id, 'hex'), id, pin_agent, pin_person, 'rejected', service,
           exporter
      FROM json_to_recordset(traces_sent) AS sent (
               trace_id text, id uuid, service text, exporter text, key_used uuid)
     WHERE key_used <> ALL (coalesce(bad_keys, '{}'))
     ORDER BY trace_id
        ON CONFLICT (tenant_id, pin, trace_id) DO NOTHING;
    PERFORM FROM traces
      WHERE tenant_id = tenant AND pin = scope
        AND trace_id IN (SELECT decode(trace_id, 'hex')
                           FROM json_to_recordset(traces_sent) AS sent (trace_id text))
      ORDER BY trace_id FOR UPDATE;
    moment := clock_timestamp();

    WITH sent AS (
        -- Of a span that a request repeats, the one that has ended counts.
        SELECT DISTINCT ON (trace_id, span_id) trace_id, span_id, is_root, has_ended, started,
               body, resource_bodies[resource] AS resource_body
          FROM unnest(trace_ids, span_ids, roots, ends, starts, bodies, resources, sent_by)
               AS new (trace_id, span_id, is_root, has_ended, started, body, resource, key_place)
         WHERE keys_used[key_place] <> ALL (coalesce(bad_keys, '{}'))
         ORDER BY trace_id, span_id, has_ended DESC),
    added AS (
        INSERT INTO staged_spans AS known (tenant_id, pin, trace_id, span_id, is_root, has_ended,
                                           started, body, resource)
        SELECT tenant, scope, trace_id, span_id, is_root, has_ended, started, body, resource_body
          FROM sent JOIN traces AS t USING (trace_id)
         WHERE t.tenant_id = tenant AND t.pin = scope AND span_id <> ALL (t.assembled)
            ON CONFLICT (tenant_id, pin, trace_id, span_id) DO UPDATE
           SET is_root = excluded.is_root, has_ended = true, body = excluded.body,
               resource = excluded.resource
         WHERE excluded.has_ended AND NOT known.has_ended
        RETURNING trace_id, is_root AND has_ended AS rooted, length(body) + length(resource) AS size,
                  xmax = 0 AS is_new),
    sums AS (
        SELECT trace_id, count(*) FILTER (WHERE is_new) AS spans, sum(size) AS size,
               count(*) FILTER (WHERE rooted) AS roots
          FROM added GROUP BY trace_id)
    UPDATE traces AS t
       SET status = 'staged', reason = NULL, at = moment, spans = t.spans + sums.spans,
           bytes = t.bytes + sums.size, staged_bytes = t.staged_bytes + sums.size,
           roots = t.roots + sums.roots, attempts = 0,
           due_at = CASE WHEN t.staged_bytes + sums.size > 33554432 THEN moment
                         WHEN t.roots + sums.roots > 0 OR cardinality(t.assembled) > 0
                         THEN moment + interval '2 s' ELSE moment + interval '60 s' END
      FROM sums
     WHERE t.tenant_id = tenant AND t.pin = scope AND t.trace_id = sums.trace_id;

    UPDATE traces AS t
       SET rejected = t.rejected + sent.rejected, at = moment,
           reason = CASE WHEN t.status = 'rejected' THEN sent.reason ELSE t.reason END
      FROM (SELECT decode(trace_id, 'hex') AS trace_id, sum(rejected) AS rejected,
                   max(reason) AS reason
              FROM json_to_recordset(traces_sent) AS sent (
                       trace_id text, rejected bigint, reason text, key_used uuid)
             WHERE rejected > 0 AND key_used <> ALL (coalesce(bad_keys, '{}'))
             GROUP BY 1) AS sent
     WHERE t.tenant_id = tenant AND t.pin = scope AND t.trace_id = sent.trace_id;

    IF count_staged THEN
        SELECT coalesce(sum(staged_bytes), 0) INTO staged FROM traces
         WHERE tenant_id = tenant AND status = 'staged';
    END IF;
END $$;
