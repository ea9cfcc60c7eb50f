-- Stores the signed records of several requests, of one tenant or of many: bundle, metadata, leaf,
-- and the answer under its Idempotency-Key. What is refused is each record's own, or of an atomic
-- request that of all its records.
-- Called by app/core/records/intake.py (`store`).
--
-- most_records, most_bytes  the storage limits of a tenant; null: none
-- waits                     whether to wait for a session that is being changed, two seconds at most
--
-- All others are arrays with an element for each record:
-- asked, tenants, keys      the number of its request, with its tenant and API key
-- unconfirmed, atomic       whether that key is to be checked; whether all of the request or nothing
--                           is stored
-- agents_as_of              `updated_at` of the agent that is named in the bundle
-- ids … traces              the row of the record; `digests` and `sizes` are those of its bundle
-- sealed, blobs             its bundle's bytes, sealed, or the object that has them; see `bundles`
-- leaf_ids …                its leaf
-- scopes, bodies, answers   its Idempotency-Key, as app/core/idempotency.py says, with the sealed
--                           answer to keep; null without one
--
-- problems                  null, or why it was not stored: `key`, `session`, `completed`, `records`
--                           or `bytes` (the storage limit), `reused` or `in-use` (its
--                           Idempotency-Key); `again`: sign it anew, for the time, the signing key or
--                           the agent is another, or its session was being changed; `other`: another
--                           record of its atomic request was refused; `replayed`: it was stored before
-- replayed                  the sealed answers of those
-- moment, signing_key       the time, and the key that signs now
--
-- Row-level security binds every row to the tenant of its request: `app.tenant_id` is set for each
-- tenant before its rows are read or written, in an order that is the same for all callers. A pin
-- needs no argument: agent and principal, which the caller was checked for, must be the session's.
CREATE OR REPLACE FUNCTION add_records(
    most_records bigint, most_bytes bigint, waits boolean,
    asked integer[], tenants uuid[], keys uuid[], unconfirmed boolean[], atomic boolean[],
    agents_as_of timestamptz[], ids uuid[], sessions uuid[], agents uuid[], principals text[],
    kinds text[], titles text[], labels text[], occurred timestamptz[], digests bytea[],
    sizes bigint[], key_ids text[], signatures bytea[], created timestamptz[],
    traces text[], sealed bytea[], blobs uuid[], leaf_ids uuid[], leaf_hashes bytea[], leaves bytea[],
    scopes bytea[], bodies bytea[], answers bytea[],
    OUT problems text[], OUT replayed bytea[], OUT moment timestamptz, OUT signing_key text)
LANGUAGE plpgsql AS $$
DECLARE
    of_tenant uuid;
    since timestamptz;
    changed timestamptz;
    has_keys boolean := cardinality(array_remove(scopes, NULL)) > 0;
    own record;
    stored_count bigint;
    stored_bytes bigint;
BEGIN
    -- The transaction has an id before it looks at the clock, so that what indexes words knows it is
    -- under way: no record is more than ten seconds older. A plan made while a table was small must
    -- not read all of it when it has grown.
    PERFORM pg_current_xact_id(), set_config('lock_timeout', '2s', true),
            set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true);
    moment := clock_timestamp();
    -- Read after the moment, so a key that signs here was not retired before it.
    SELECT k.key_id, k.created_at INTO signing_key, since FROM signing_keys AS k
     WHERE k.purpose = 'bundle' AND k.retired_at IS NULL;
    problems := array_fill(NULL::text, ARRAY[cardinality(ids)]);
    replayed := array_fill(NULL::bytea, ARRAY[cardinality(ids)]);
    FOR of_tenant IN SELECT DISTINCT t FROM unnest(tenants) AS t ORDER BY t LOOP
        PERFORM set_config('app.tenant_id', of_tenant::text, true);
        IF has_keys THEN
            FOR own IN
                SELECT n, kept.body_sha256 = body AS is_same, kept.sealed_answer
                  FROM unnest(tenants, keys, scopes, bodies) WITH ORDINALITY
                       AS new (tenant, key, scope, body, n)
                 CROSS JOIN LATERAL (
                       SELECT k.body_sha256, k.sealed_answer FROM idempotency_keys AS k
                        WHERE k.tenant_id = of_tenant AND k.api_key_id = key AND k.scope = new.scope
                          AND k.created_at > moment - interval '24 hours' OFFSET 0) AS kept
                 WHERE tenant = of_tenant AND scope IS NOT NULL
            LOOP
                problems[own.n] := CASE WHEN own.is_same THEN 'replayed' ELSE 'reused' END;
                replayed[own.n] := CASE WHEN own.is_same THEN own.sealed_answer END;
            END LOOP;
        END IF;

        -- A record that comes after a change of a rule is judged by what the rule is since then.
        SELECT t.changed_at INTO changed FROM rule_turns AS t
         WHERE t.tenant_id = of_tenant AND t.changed_at <= moment;
        SELECT coalesce(sum(s.records), 0), coalesce(sum(s.bytes), 0)
          INTO stored_count, stored_bytes FROM stored_records AS s WHERE s.tenant_id = of_tenant;
        -- Locked, so that no record follows its session's completion.
        IF waits THEN
            PERFORM FROM sessions AS s WHERE s.tenant_id = of_tenant AND s.id = ANY (sessions)
              ORDER BY s.id FOR SHARE;
        END IF;
        FOR own IN
            WITH held AS MATERIALIZED (
                SELECT s.id, s.agent_id, s.principal, s.status FROM sessions AS s
                 WHERE s.tenant_id = of_tenant AND s.id = ANY (sessions) FOR SHARE SKIP LOCKED
            ), valid AS MATERIALIZED (
                SELECT k.id FROM api_keys AS k
                 WHERE k.tenant_id = of_tenant AND k.id = ANY (keys) AND k.revoked_at IS NULL
                   AND (k.expires_at IS NULL OR k.expires_at > moment)
            )
            SELECT n, size, CASE
                   WHEN is_unconfirmed AND key NOT IN (TABLE valid) THEN 'key'
                   WHEN problem IS NOT NULL THEN problem
                   WHEN scope IS NOT NULL AND EXISTS (
                        SELECT FROM unnest(keys[1 : n - 1], scopes[1 : n - 1]) AS earlier (k, s)
                         WHERE k = key AND s = scope) THEN 'in-use'
                   WHEN held.id IS NULL AND EXISTS (
                        SELECT FROM sessions AS s
                         WHERE s.tenant_id = of_tenant AND s.id = session) THEN 'again'
                   WHEN held.id IS NULL THEN 'session'
                   WHEN held.status = 'completed' THEN 'completed'
                   WHEN (held.agent_id, held.principal, key_id)
                        IS DISTINCT FROM (agent, person, signing_key) OR at < since OR at < changed
                        OR at NOT BETWEEN moment - interval '10 seconds' AND moment
                        OR as_of IS DISTINCT FROM (
                           SELECT a.updated_at FROM agents AS a
                            WHERE a.tenant_id = of_tenant AND a.id = agent) THEN 'again' END AS problem
              FROM unnest(tenants, keys, unconfirmed, scopes, sessions, agents, agents_as_of,
                          principals, key_ids, created, sizes, problems) WITH ORDINALITY
                   AS new (tenant, key, is_unconfirmed, scope, session, agent, as_of, person, key_id,
                           at, size, problem, n)
              LEFT JOIN held ON held.id = session
             WHERE tenant = of_tenant ORDER BY n
        LOOP
            IF own.problem IS NULL THEN
                -- What is stored at the same time may exceed a limit by its own size.
                IF stored_bytes + own.size > most_bytes THEN
                    own.problem := 'bytes';
                ELSIF stored_count >= most_records THEN
                    own.problem := 'records';
                ELSE
                    stored_count := stored_count + 1;
                    stored_bytes := stored_bytes + own.size;
                END IF;
            END IF;
            problems[own.n] := own.problem;
        END LOOP;
        IF true = ANY (atomic) THEN
            SELECT array_agg(CASE WHEN problem IS NULL AND is_refused THEN 'other' ELSE problem END
                             ORDER BY n)
              INTO problems
              FROM (SELECT n, problem, is_atomic AND bool_or(problem <> 'replayed')
                                                     OVER (PARTITION BY number) AS is_refused
                      FROM unnest(asked, atomic, problems) WITH ORDINALITY
                           AS new (number, is_atomic, problem, n)) AS new;
        END IF;

        IF has_keys THEN
            FOR own IN
                WITH kept AS (
                    INSERT INTO idempotency_keys AS k
                           (tenant_id, api_key_id, scope, body_sha256, status, sealed_answer)
                    SELECT tenant, key, scope, body, 201, answer
                      FROM unnest(tenants, keys, scopes, bodies, answers, problems)
                           AS new (tenant, key, scope, body, answer, problem)
                     WHERE tenant = of_tenant AND scope IS NOT NULL AND problem IS NULL
                     ORDER BY key, scope
                        ON CONFLICT (tenant_id, api_key_id, scope) DO UPDATE
                       SET body_sha256 = excluded.body_sha256, status = excluded.status,
                           sealed_answer = excluded.sealed_answer, created_at = clock_timestamp()
                     WHERE k.created_at <= moment - interval '24 hours'
                    RETURNING k.api_key_id, k.scope
                )
                SELECT n, is_atomic
                  FROM unnest(tenants, keys, scopes, atomic, problems) WITH ORDINALITY
                       AS new (tenant, key, scope, is_atomic, problem, n)
                 WHERE tenant = of_tenant AND scope IS NOT NULL AND problem IS NULL
                   AND (key, scope) NOT IN (TABLE kept)
            LOOP
                -- Another transaction has stored it since the look above. Nothing is done then, and
                -- each request goes alone: this one sees the other's answer.
                IF own.is_atomic THEN
                    RAISE serialization_failure;
                END IF;
                problems[own.n] := 'in-use';
            END LOOP;
        END IF;

        INSERT INTO records (tenant_id, id, session_id, agent_id, principal, kind, title, labels_json,
                             occurred_at, bundle_sha256, bundle_size, key_id, signature, created_at,
                             trace_id)
        SELECT tenant, id, session, agent, person, kind, title, label, occurred_at, digest, size,
               key_id, signature, at, trace
          FROM unnest(tenants, ids, sessions, agents, principals, kinds, titles, labels, occurred,
                      digests, sizes, key_ids, signatures, created, traces, problems)
               AS new (tenant, id, session, agent, person, kind, title, label, occurred_at, digest,
                       size, key_id, signature, at, trace, problem)
         WHERE tenant = of_tenant AND problem IS NULL;
        INSERT INTO bundles (tenant_id, record_id, size, bytes, blob)
        SELECT tenant, id, size, content, blob
          FROM unnest(tenants, ids, sizes, sealed, blobs, problems)
               AS new (tenant, id, size, content, blob, problem)
         WHERE tenant = of_tenant AND problem IS NULL;
    END LOOP;
    INSERT INTO log_leaves (id, leaf_hash, data)
    SELECT id, leaf_hash, leaf FROM unnest(leaf_ids, leaf_hashes, leaves, problems)
           AS new (id, leaf_hash, leaf, problem)
     WHERE problem IS NULL;
END $$;
