-- The tables of the first release, by aggregate: each with its indexes, triggers and policy.
--
-- The first column of every primary key and unique index is tenant_id. JSON documents are text:
-- jsonb rewrites numbers and refuses U+0000.

-- Row-level security by tenant. FORCE binds the owner too: where one role is owner and service,
-- the policies hold all the same.
CREATE FUNCTION isolate(walled text, tenant_column text DEFAULT 'tenant_id') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', walled);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', walled);
    EXECUTE format($policy$
        CREATE POLICY %I ON %I USING (
            %I = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
            OR (SELECT current_setting('app.every_tenant', true) = 'on'))
        $policy$, walled || '_of_this_tenant', walled, tenant_column);
END $$;


-- Tenants ----------------------------------------------------------------------------------------

CREATE TABLE tenants (
    id                    uuid PRIMARY KEY,
    name                  text NOT NULL,
    bundle_visibility     text NOT NULL DEFAULT 'private'
                          CHECK (bundle_visibility IN ('public', 'private')),
    bundle_retention_days bigint CHECK (bundle_retention_days BETWEEN 1 AND 3650),
    anchoring_enabled     boolean NOT NULL DEFAULT true,
    notification_email    text,
    -- From the setting of an address to its clearing. A finding is born into its tenant's series:
    -- what was found before is in none, and what was left over when one ended is never found again.
    digest_series         uuid,
    -- Which setting of the address it is: the links in its mails know it.
    address_nonce         uuid,
    expired_through       timestamptz,
    -- Of which troubles its operators are told; null: nobody is.
    alert_kinds           text[] CHECK (cardinality(alert_kinds) > 0),
    suspended_at          timestamptz,
    -- When all that has expired was last looked through for bundles that are still there.
    looked_through_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    sealed_search_key     bytea,
    -- A chain's name in the public log is the SHA-256 of this salt, so the log names no tenant.
    -- It counts only with its seal, which only who holds MASTER_KEYS makes.
    chain_salt            bytea CHECK (length(chain_salt) = 32),
    chain_seal            bytea,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp()
);
SELECT isolate('tenants', tenant_column => 'id');
-- Whose chain a leaf of the log is of.
CREATE INDEX tenants_chain ON tenants (sha256('audit-chain:'::bytea || chain_salt));
-- The sweep asks each second who is suspended, and that is next to nobody.
CREATE INDEX tenants_suspended ON tenants (id) WHERE suspended_at IS NOT NULL;
CREATE INDEX tenants_name ON tenants (lower(name) text_pattern_ops, id);
CREATE INDEX tenants_watched ON tenants (id) WHERE alert_kinds IS NOT NULL;
CREATE TRIGGER keep_digest_series BEFORE INSERT OR UPDATE OF notification_email ON tenants
    FOR EACH ROW EXECUTE FUNCTION keep_digest_series();


-- Callers ----------------------------------------------------------------------------------------

CREATE TABLE api_keys (
    tenant_id     uuid NOT NULL REFERENCES tenants,
    id            uuid NOT NULL,
    name          text NOT NULL,
    role          text NOT NULL CHECK (role IN ('read', 'write', 'admin')),
    pin_agent_id  uuid,
    pin_principal text,
    digest        bytea NOT NULL CHECK (length(digest) = 32),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by    uuid,
    expires_at    timestamptz,
    revoked_at    timestamptz,
    -- A suspended key has revoked_at too, so every question whether a key is good refuses it.
    suspended_at  timestamptz,
    last_used_at  timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK ((pin_agent_id IS NULL) = (pin_principal IS NULL))
);
SELECT isolate('api_keys');
-- One of the two lookups that find a tenant, so this unique index cannot begin with it.
CREATE UNIQUE INDEX api_keys_digest ON api_keys (digest);
CREATE INDEX api_keys_minted_by ON api_keys (tenant_id, created_by) WHERE created_by IS NOT NULL;

-- Who signed in by OpenID Connect. The id is made of issuer and subject; the rest are labels, as the
-- provider told them last.
CREATE TABLE people (
    tenant_id  uuid NOT NULL REFERENCES tenants,
    id         uuid NOT NULL,
    issuer     text NOT NULL,
    subject    text NOT NULL,
    email      text,
    name       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, id)
);
SELECT isolate('people');
CREATE INDEX people_email ON people (tenant_id, lower(email)) WHERE email IS NOT NULL;

-- Which role the people of a provider's group have.
CREATE TABLE tenant_groups (
    tenant_id uuid NOT NULL REFERENCES tenants,
    name      text NOT NULL,
    role      text NOT NULL CHECK (role IN ('read', 'write', 'admin')),
    PRIMARY KEY (tenant_id, name)
);
SELECT isolate('tenant_groups');
-- Whoever signs in asks which tenants their groups are of.
CREATE INDEX tenant_groups_name ON tenant_groups (name);

-- Of a key, or of a person with those of their groups that the tenant knew.
CREATE TABLE console_sessions (
    tenant_id    uuid NOT NULL,
    digest       bytea NOT NULL CHECK (length(digest) = 32),
    id           uuid NOT NULL,
    api_key_id   uuid,
    person_id    uuid,
    groups       text[],
    origin       text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    last_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, digest),
    FOREIGN KEY (tenant_id, api_key_id) REFERENCES api_keys,
    FOREIGN KEY (tenant_id, person_id) REFERENCES people,
    CHECK (num_nonnulls(api_key_id, person_id) = 1 AND (person_id IS NULL) = (groups IS NULL))
);
SELECT isolate('console_sessions');

-- A list's filters under a name, for everybody of the tenant who uses the console.
CREATE TABLE saved_views (
    tenant_id  uuid NOT NULL REFERENCES tenants,
    id         uuid NOT NULL,
    page       text NOT NULL,
    name       text NOT NULL,
    query      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by uuid NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, page, name)
);
SELECT isolate('saved_views');

CREATE UNIQUE INDEX console_sessions_id ON console_sessions (tenant_id, id);

-- Of operators: no tenant's, and so no policy. `digest` is of the key until it is used, then of the
-- session.
CREATE TABLE operator_sessions (
    digest     bytea PRIMARY KEY CHECK (length(digest) = 32),
    name       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    entered_at timestamptz,
    origin     text
);

-- What a tick counted of each tenant, for the operator's list.
CREATE TABLE tenant_figures (
    tenant_id uuid PRIMARY KEY REFERENCES tenants,
    waiting   bigint NOT NULL,
    failed    bigint NOT NULL,
    failing   bigint NOT NULL,
    slow      bigint NOT NULL,
    bytes     bigint NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
SELECT isolate('tenant_figures');
CREATE INDEX tenant_figures_waiting ON tenant_figures (waiting, tenant_id);
CREATE INDEX tenant_figures_failed ON tenant_figures (failed, tenant_id);
CREATE INDEX tenant_figures_failing ON tenant_figures (failing, tenant_id);
CREATE INDEX tenant_figures_slow ON tenant_figures (slow, tenant_id);
CREATE INDEX tenant_figures_bytes ON tenant_figures (bytes, tenant_id);

CREATE TABLE idempotency_keys (
    tenant_id     uuid NOT NULL REFERENCES tenants,
    api_key_id    uuid NOT NULL,
    scope         bytea NOT NULL,
    body_sha256   bytea NOT NULL,
    status        smallint NOT NULL,
    sealed_answer bytea NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, api_key_id, scope)
);
SELECT isolate('idempotency_keys');
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);


-- The service's own keys and notes: no tenant, and so no policy ------------------------------------

-- The id is the beginning of the key's SHA-256, as everything sealed under it names it: no secret.
CREATE TABLE master_keys (
    key_id      text PRIMARY KEY CHECK (key_id ~ '^[0-9a-f]{8}$'),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When a process last recorded that it seals under it; none: something was found.
    in_front_at timestamptz,
    -- When nothing was found under it: from then on it is not missed.
    emptied_at  timestamptz
);

CREATE TABLE signing_keys (
    key_id             text PRIMARY KEY,
    purpose            text NOT NULL CHECK (purpose IN ('bundle', 'log')),
    public_key         bytea NOT NULL CHECK (length(public_key) = 32),
    sealed_private_key bytea NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at         timestamptz,
    revoked_at         timestamptz,
    revocation_reason  text,
    CONSTRAINT signing_keys_revoked CHECK (
        (revoked_at IS NULL) = (revocation_reason IS NULL)
        AND (revoked_at IS NULL OR retired_at IS NOT NULL))
);
CREATE UNIQUE INDEX signing_keys_current ON signing_keys (purpose) WHERE retired_at IS NULL;

-- When every chain was verified last, as only who holds MASTER_KEYS can say it.
CREATE TABLE sealed_notes (
    name   text PRIMARY KEY,
    sealed bytea NOT NULL
);


-- Agents and sessions ----------------------------------------------------------------------------

CREATE TABLE agents (
    tenant_id     uuid NOT NULL REFERENCES tenants,
    id            uuid NOT NULL,
    external_id   text,
    name          text NOT NULL,
    version       text,
    description   text,
    metadata_json text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, id)
);
SELECT isolate('agents');
CREATE UNIQUE INDEX agents_external_id ON agents (tenant_id, external_id)
    WHERE external_id IS NOT NULL;
CREATE INDEX agents_name ON agents (tenant_id, name, id);

-- `until` is when an agent was given another name. Agents that were never renamed have no row.
CREATE TABLE former_agent_names (
    tenant_id uuid NOT NULL,
    agent_id  uuid NOT NULL,
    until     timestamptz NOT NULL DEFAULT clock_timestamp(),
    name      text NOT NULL,
    PRIMARY KEY (tenant_id, agent_id, until),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents
);
SELECT isolate('former_agent_names');

CREATE TABLE sessions (
    tenant_id     uuid NOT NULL,
    id            uuid NOT NULL,
    external_id   text,
    agent_id      uuid NOT NULL,
    principal     text NOT NULL,
    title         text,
    metadata_json text,
    status        text NOT NULL CHECK (status IN ('open', 'completed')),
    outcome       text CHECK (outcome IN ('succeeded', 'failed', 'cancelled', 'abandoned')),
    summary       text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at  timestamptz,
    -- Up to when it is known that something came to it; not written with what comes.
    active_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When its statement was signed: some moments after it was completed.
    sealed_at     timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents,
    CHECK (sealed_at IS NULL OR status = 'completed'),
    CHECK ((status = 'completed') = (outcome IS NOT NULL AND completed_at IS NOT NULL))
);
SELECT isolate('sessions');
-- Of all tenants: those that have been quiet the longest come first.
CREATE INDEX sessions_active_at ON sessions (active_at) WHERE status = 'open';
CREATE INDEX sessions_to_seal ON sessions (completed_at)
    WHERE status = 'completed' AND sealed_at IS NULL;
CREATE UNIQUE INDEX sessions_external_id ON sessions (tenant_id, external_id)
    WHERE external_id IS NOT NULL;
CREATE INDEX sessions_agent ON sessions (tenant_id, agent_id, id);
CREATE INDEX sessions_principal ON sessions (tenant_id, principal, id);
CREATE INDEX sessions_status ON sessions (tenant_id, status, id);


-- Records ----------------------------------------------------------------------------------------

CREATE TABLE records (
    tenant_id     uuid NOT NULL,
    id            uuid NOT NULL,
    session_id    uuid NOT NULL,
    agent_id      uuid NOT NULL,
    principal     text NOT NULL,
    kind          text NOT NULL,
    title         text NOT NULL,
    labels_json   text NOT NULL,
    occurred_at   timestamptz NOT NULL,
    bundle_sha256 bytea NOT NULL CHECK (length(bundle_sha256) = 32),
    bundle_size   bigint NOT NULL,
    key_id        text NOT NULL REFERENCES signing_keys,
    signature     bytea NOT NULL CHECK (length(signature) = 64),
    created_at    timestamptz NOT NULL,
    trace_id      text,
    -- The transaction that wrote it, so that a reader misses none that commits late.
    written_by    bigint NOT NULL DEFAULT (pg_current_xact_id()::text)::bigint,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions
);
SELECT isolate('records');
CREATE INDEX records_occurred_at ON records (tenant_id, occurred_at);
CREATE INDEX records_written_by ON records (tenant_id, written_by, id);
CREATE INDEX records_trace ON records (tenant_id, trace_id, id) WHERE trace_id IS NOT NULL;
CREATE INDEX records_session ON records (tenant_id, session_id, id);
CREATE INDEX records_agent ON records (tenant_id, agent_id, id);
CREATE INDEX records_principal ON records (tenant_id, principal, id);
CREATE INDEX records_kind ON records (tenant_id, kind, id);
CREATE INDEX records_created_at ON records (tenant_id, created_at, id);
-- A public record is asked for by its id alone.
CREATE INDEX records_id ON records (id);

-- What rows no longer name in the object store, and what is to be erased there, in the transaction
-- that removed the row. Bytes that were only moved or sealed anew stay for a day, for backups, while
-- their row is there.
CREATE TABLE dead_blobs (
    tenant_id uuid NOT NULL,
    blob      uuid NOT NULL,
    kind      text NOT NULL,
    owner_id  uuid NOT NULL,
    number    bigint NOT NULL,
    due_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, blob)
);
SELECT isolate('dead_blobs');
CREATE INDEX dead_blobs_due ON dead_blobs (due_at);
CREATE INDEX dead_blobs_owner ON dead_blobs (tenant_id, owner_id);

-- A row gone is a bundle expired. Sealed bytes lie here or, where `blob` names an object, in the
-- object store; with both they lie here, and wait to be carried over.
CREATE TABLE bundles (
    tenant_id uuid NOT NULL,
    record_id uuid NOT NULL,
    size      bigint NOT NULL,
    bytes     bytea,
    blob      uuid,
    PRIMARY KEY (tenant_id, record_id),
    FOREIGN KEY (tenant_id, record_id) REFERENCES records,
    CHECK (num_nonnulls(bytes, blob) > 0)
);
SELECT isolate('bundles');
CREATE INDEX bundles_waiting ON bundles (tenant_id, record_id)
    WHERE bytes IS NOT NULL AND blob IS NOT NULL;
-- Sealed bytes do not shrink.
ALTER TABLE bundles ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE TRIGGER bundles_stored AFTER INSERT ON bundles
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_stored_records();
CREATE TRIGGER bundles_gone AFTER DELETE ON bundles
    REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_stored_records();
CREATE TRIGGER bundles_erased AFTER DELETE ON bundles
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION forget_blobs('record_id');

-- Few rows, changed with every record: room in each page keeps the changes out of the index.
-- Sixteen rows a tenant, so that few writers wait for each other. A backend keeps to one of them:
-- two transactions that write several times can then not wait for each other in a circle.
CREATE TABLE stored_records (
    tenant_id uuid NOT NULL,
    shard     smallint NOT NULL,
    records   bigint NOT NULL,
    bytes     bigint NOT NULL,
    PRIMARY KEY (tenant_id, shard)
) WITH (fillfactor = 50);
SELECT isolate('stored_records');

-- Legal holds. While one stands, the content of its records does not expire: those of one subject (ids
-- are unique across kinds), or those that were created in a range of time.
CREATE TABLE holds (
    tenant_id   uuid NOT NULL REFERENCES tenants,
    id          uuid NOT NULL,
    reason      text NOT NULL,
    record_id   uuid,
    session_id  uuid,
    agent_id    uuid,
    subject_id  uuid GENERATED ALWAYS AS (coalesce(record_id, session_id, agent_id)) STORED,
    since       timestamptz,
    until       timestamptz,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by  uuid NOT NULL,
    released_at timestamptz,
    released_by uuid,
    PRIMARY KEY (tenant_id, id),
    CHECK (num_nonnulls(record_id, session_id, agent_id, since) = 1),
    CHECK ((since IS NULL) = (until IS NULL) AND coalesce(since < until, true)),
    CHECK ((released_at IS NULL) = (released_by IS NULL))
);
SELECT isolate('holds');
CREATE INDEX holds_subject ON holds (tenant_id, subject_id)
    WHERE released_at IS NULL AND subject_id IS NOT NULL;
CREATE INDEX holds_range ON holds (tenant_id, until, since)
    WHERE released_at IS NULL AND subject_id IS NULL;

CREATE TABLE share_links (
    tenant_id      uuid NOT NULL,
    id             uuid NOT NULL,
    record_id      uuid NOT NULL,
    digest         bytea NOT NULL CHECK (length(digest) = 32),
    created_at     timestamptz NOT NULL,
    created_by     uuid NOT NULL,
    expires_at     timestamptz NOT NULL CHECK (expires_at > created_at),
    revoked_at     timestamptz,
    opened         bigint NOT NULL DEFAULT 0,
    last_opened_at timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, record_id) REFERENCES records
);
SELECT isolate('share_links');
CREATE INDEX share_links_record ON share_links (tenant_id, record_id, id);
-- The other of the two lookups that find a tenant.
CREATE UNIQUE INDEX share_links_digest ON share_links (digest);

-- Only what tells the first opening of a link by an address, on one day, from the others. The
-- address itself is nowhere: it is hashed with the link's token, which is not kept either.
CREATE TABLE share_link_openings (
    tenant_id     uuid NOT NULL,
    share_link_id uuid NOT NULL,
    day           date NOT NULL,
    address_hash  bytea NOT NULL CHECK (length(address_hash) = 32),
    PRIMARY KEY (tenant_id, share_link_id, day, address_hash),
    FOREIGN KEY (tenant_id, share_link_id) REFERENCES share_links
);
SELECT isolate('share_link_openings');
CREATE INDEX share_link_openings_day ON share_link_openings (day);


-- Spans of OpenTelemetry, from their arrival to the records made of them --------------------------

-- `pin` is made of the pin of the key that sent a trace, zero without one: equal ids under another
-- pin are other traces. What staging changes stands in no index: most updates are then heap-only.
CREATE TABLE traces (
    tenant_id     uuid NOT NULL REFERENCES tenants,
    pin           uuid NOT NULL,
    -- Empty: spans whose trace's id cannot be one, all of them together.
    trace_id      bytea NOT NULL CHECK (length(trace_id) IN (0, 16)),
    id            uuid NOT NULL,
    pin_agent_id  uuid,
    pin_principal text,
    status        text NOT NULL CHECK (status IN
                  ('staged', 'assembled', 'incomplete', 'dropped', 'rejected')),
    reason        text,
    service       text,
    exporter      text,
    spans         bigint NOT NULL DEFAULT 0,
    bytes         bigint NOT NULL DEFAULT 0,
    rejected      bigint NOT NULL DEFAULT 0,
    staged_bytes  bigint NOT NULL DEFAULT 0,
    -- Staged local roots that have ended.
    roots         bigint NOT NULL DEFAULT 0,
    -- The spans that were assembled or dropped: no repeat of them is staged again.
    assembled     bytea[] NOT NULL DEFAULT '{}',
    record_ids    uuid[] NOT NULL DEFAULT '{}',
    -- The first record was made without its root, and what comes later supplements it.
    is_incomplete boolean NOT NULL DEFAULT false,
    attempts      bigint NOT NULL DEFAULT 0,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, pin, trace_id),
    CHECK ((pin_agent_id IS NULL) = (pin_principal IS NULL))
) WITH (fillfactor = 70);
SELECT isolate('traces');
CREATE UNIQUE INDEX traces_id ON traces (tenant_id, id);
CREATE INDEX traces_status ON traces (tenant_id, status, id);
CREATE INDEX traces_staged ON traces (tenant_id, id) WHERE status = 'staged';

-- As it came: protobuf's bytes, or JSON. Its trace's row is locked before one is written, so no
-- foreign key has to look for it once more.
CREATE TABLE staged_spans (
    tenant_id uuid NOT NULL,
    pin       uuid NOT NULL,
    trace_id  bytea NOT NULL,
    span_id   bytea NOT NULL CHECK (length(span_id) = 8),
    is_root   boolean NOT NULL,
    has_ended boolean NOT NULL,
    started   bigint NOT NULL,
    body      bytea NOT NULL,
    resource  bytea NOT NULL,
    PRIMARY KEY (tenant_id, pin, trace_id, span_id)
);
SELECT isolate('staged_spans');


-- Findings and their digests ---------------------------------------------------------------------

CREATE TABLE findings (
    tenant_id  uuid NOT NULL,
    id         uuid NOT NULL,
    session_id uuid NOT NULL,
    record_id  uuid,
    agent_id   uuid NOT NULL,
    principal  text NOT NULL,
    rule       text NOT NULL,
    severity   text NOT NULL CHECK (severity IN ('info', 'low', 'medium', 'high', 'critical')),
    source     text NOT NULL DEFAULT 'api' CHECK (source IN ('api', 'otlp', 'rule')),
    title      text NOT NULL,
    detail     text,
    data_json  text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The series in which it waits, then the digest that lists it. Null where the tenant had no
    -- address.
    digest_id  uuid,
    PRIMARY KEY (tenant_id, id)
    -- No foreign keys: `add_findings` finds session and record, neither of which is ever deleted, and
    -- the key's lock writes a session's row anew for each of the transactions that meet on it.
);
SELECT isolate('findings');
CREATE INDEX findings_session ON findings (tenant_id, session_id, id);
CREATE INDEX findings_agent ON findings (tenant_id, agent_id, id);
CREATE INDEX findings_principal ON findings (tenant_id, principal, id);
CREATE INDEX findings_severity ON findings (tenant_id, severity, id);
CREATE INDEX findings_rule ON findings (tenant_id, rule, id);
CREATE INDEX findings_source ON findings (tenant_id, source, id) WHERE source <> 'api';
CREATE INDEX findings_record ON findings (tenant_id, record_id, id) WHERE record_id IS NOT NULL;
CREATE INDEX findings_digest ON findings (tenant_id, digest_id, id) WHERE digest_id IS NOT NULL;

-- What is left of findings that have expired, by the day (UTC) on which they were created.
CREATE TABLE expired_findings (
    tenant_id uuid NOT NULL,
    day       date NOT NULL,
    rule      text NOT NULL,
    severity  text NOT NULL,
    source    text NOT NULL,
    findings  bigint NOT NULL,
    PRIMARY KEY (tenant_id, day, rule, severity, source)
);
SELECT isolate('expired_findings');

CREATE TABLE digests (
    tenant_id  uuid NOT NULL REFERENCES tenants,
    id         uuid NOT NULL,
    series     uuid NOT NULL,
    through    uuid,
    repeats    uuid,
    status     text NOT NULL DEFAULT 'pending' CHECK (status IN
               ('pending', 'sending', 'sent', 'uncertain', 'content_refused', 'cancelled')),
    findings   bigint,
    refusals   bigint NOT NULL DEFAULT 0,
    error      text,
    -- Sent without titles, for the server refused them.
    brief      boolean NOT NULL DEFAULT false,
    -- What of the last attempt was refused for good, and the server's words.
    refusal    text CHECK (refusal IN ('server', 'recipient', 'content')),
    said       text,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data_at    timestamptz,
    sent_at    timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK ((data_at IS NOT NULL) = (status IN ('sending', 'sent', 'uncertain'))),
    CHECK ((sent_at IS NOT NULL) = (status = 'sent'))
);
SELECT isolate('digests');
-- The claim: of several who find a tenant due, one makes this row.
CREATE UNIQUE INDEX digests_open ON digests (tenant_id) WHERE status IN ('pending', 'sending');
CREATE UNIQUE INDEX digests_repeats ON digests (tenant_id, repeats) WHERE repeats IS NOT NULL;
-- Digests whose findings the next one lists again.
CREATE INDEX digests_lost ON digests (tenant_id, series)
    WHERE status IN ('uncertain', 'content_refused');
CREATE INDEX digests_last ON digests (tenant_id, data_at) WHERE data_at IS NOT NULL;
CREATE INDEX digests_data_at ON digests (data_at) WHERE data_at IS NOT NULL;

-- Who is told of troubles, and up to which alert they were.
CREATE TABLE alert_recipients (
    tenant_id    uuid NOT NULL REFERENCES tenants,
    email        text NOT NULL,
    -- Which setting of the address it is: the links in its mails know it.
    nonce        uuid NOT NULL DEFAULT gen_random_uuid(),
    told_through bigint NOT NULL,
    PRIMARY KEY (tenant_id, email)
);
SELECT isolate('alert_recipients');

-- A trouble of a tenant whom somebody watches: one row for as long as it stands.
CREATE TABLE alerts (
    tenant_id uuid NOT NULL REFERENCES tenants,
    number    bigint NOT NULL,
    kind      text NOT NULL,
    subject   text NOT NULL,
    since     timestamptz NOT NULL,
    name      text NOT NULL,
    detail    text NOT NULL,
    noted_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, number)
);
SELECT isolate('alerts');
CREATE UNIQUE INDEX alerts_once ON alerts (tenant_id, kind, subject, since);
CREATE INDEX alerts_noted_at ON alerts (noted_at);

-- One mail to one recipient: of the alerts after `after`, through `through` (set as it leaves).
CREATE TABLE alert_mails (
    tenant_id  uuid NOT NULL REFERENCES tenants,
    id         uuid NOT NULL,
    email      text NOT NULL,
    nonce      uuid NOT NULL,
    after      bigint NOT NULL,
    through    bigint,
    alerts     bigint,
    status     text NOT NULL DEFAULT 'pending' CHECK (status IN
               ('pending', 'sending', 'sent', 'uncertain', 'content_refused', 'cancelled')),
    refusals   bigint NOT NULL DEFAULT 0,
    error      text,
    brief      boolean NOT NULL DEFAULT false,
    refusal    text CHECK (refusal IN ('server', 'recipient', 'content')),
    said       text,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data_at    timestamptz,
    sent_at    timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK ((data_at IS NOT NULL) = (status IN ('sending', 'sent', 'uncertain'))),
    CHECK ((sent_at IS NOT NULL) = (status = 'sent'))
);
SELECT isolate('alert_mails');
CREATE UNIQUE INDEX alert_mails_open ON alert_mails (tenant_id, email)
    WHERE status IN ('pending', 'sending');
CREATE INDEX alert_mails_last ON alert_mails (tenant_id, email, claimed_at);
CREATE INDEX alert_mails_claimed_at ON alert_mails (claimed_at);


-- Words of records, bundles and findings ---------------------------------------------------------

-- Words are keyed hashes, under a key of each tenant's own: who forgets the tenant finds nothing.
-- So these tables need no policy, and must have none: behind one, PostgreSQL uses no index of
-- words, because their operator is not known to be leakproof. Each search reads the list of what is
-- not yet in the index, so that is kept short. How common a word is decides whether the index is
-- used: ten for each of the statistics' target are known.
CREATE TABLE record_words (
    tenant_id uuid NOT NULL,
    record_id uuid NOT NULL,
    words     tsvector NOT NULL,
    PRIMARY KEY (tenant_id, record_id)
);
ALTER TABLE record_words ALTER COLUMN words SET STATISTICS 500;
CREATE INDEX record_words_words ON record_words USING gin (words)
    WITH (gin_pending_list_limit = 256);

CREATE TABLE bundle_words (
    tenant_id uuid NOT NULL,
    record_id uuid NOT NULL,
    words     tsvector NOT NULL,
    PRIMARY KEY (tenant_id, record_id)
);
ALTER TABLE bundle_words ALTER COLUMN words SET STATISTICS 500;
CREATE INDEX bundle_words_words ON bundle_words USING gin (words)
    WITH (gin_pending_list_limit = 256);

CREATE TABLE finding_words (
    tenant_id  uuid NOT NULL,
    finding_id uuid NOT NULL,
    words      tsvector NOT NULL,
    PRIMARY KEY (tenant_id, finding_id)
);
ALTER TABLE finding_words ALTER COLUMN words SET STATISTICS 500;
CREATE INDEX finding_words_words ON finding_words USING gin (words)
    WITH (gin_pending_list_limit = 256);

-- Up to which id a table's rows are indexed, and when a tenant's next ones could not be.
CREATE TABLE word_positions (
    tenant_id uuid NOT NULL REFERENCES tenants,
    source    text NOT NULL CHECK (source IN ('records', 'findings')),
    through   uuid,
    failed_at timestamptz,
    PRIMARY KEY (tenant_id, source)
);
SELECT isolate('word_positions');


-- Webhooks and their lanes -----------------------------------------------------------------------

-- The cold row, which people change.
CREATE TABLE webhooks (
    tenant_id       uuid NOT NULL REFERENCES tenants,
    id              uuid NOT NULL,
    -- What anybody may see of it; the URL itself is in sealed_target.
    url             text NOT NULL,
    event_types     text[] CHECK (cardinality(event_types) > 0),
    description     text,
    max_in_flight   smallint NOT NULL CHECK (max_in_flight BETWEEN 1 AND 64),
    lanes           smallint NOT NULL DEFAULT 1 CHECK (lanes BETWEEN 1 AND 16),
    status          text NOT NULL CHECK (status IN ('enabled', 'disabled')),
    disabled_reason text,
    sealed_secrets  bytea NOT NULL,
    sealed_target   bytea NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz,
    PRIMARY KEY (tenant_id, id)
);
SELECT isolate('webhooks');
-- What every event asks.
CREATE INDEX webhooks_live ON webhooks (tenant_id) WHERE deleted_at IS NULL;
-- Whoever names what few ask for: nobody, as a rule.
CREATE INDEX webhooks_following ON webhooks (tenant_id)
    WHERE deleted_at IS NULL AND event_types && ARRAY['record.created', 'session.opened'];
CREATE INDEX webhooks_disabled ON webhooks (tenant_id)
    WHERE status = 'disabled' AND deleted_at IS NULL;

-- The lanes of each webhook, also those that it no longer uses. The key of the first is the webhook's
-- own id (`lane_of`): everywhere below, `webhook_id` is the key of a lane.
CREATE TABLE webhook_lanes (
    tenant_id  uuid NOT NULL,
    id         uuid NOT NULL,
    webhook_id uuid NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, webhook_id) REFERENCES webhooks
);
SELECT isolate('webhook_lanes');
CREATE INDEX webhook_lanes_webhook ON webhook_lanes (tenant_id, webhook_id);
CREATE TRIGGER make_lanes AFTER INSERT OR UPDATE OF lanes ON webhooks
    FOR EACH ROW EXECUTE FUNCTION make_lanes();

-- The hot row, which workers lock. Each change gives it a new version, at the end of its key: while
-- an old snapshot keeps all earlier ones, the newest is found at once (`present_lanes`).
CREATE TABLE lanes (
    tenant_id               uuid NOT NULL,
    webhook_id              uuid NOT NULL,
    version                 bigint NOT NULL DEFAULT 0,
    next_sequence           bigint NOT NULL DEFAULT 1,
    due_at                  timestamptz,
    ring_at                 timestamptz,
    -- When the sweep has to look at it: never before the moment of its last change.
    look_at                 timestamptz,
    held_since              timestamptz,
    -- The circuit breaker.
    paused_until            timestamptz,
    pause_level             smallint NOT NULL DEFAULT 0,
    consecutive_failures    bigint NOT NULL DEFAULT 0,
    failing_since           timestamptz,
    last_success_at         timestamptz,
    slow_at                 timestamptz,
    last_failures           timestamptz[] NOT NULL DEFAULT '{}',
    warned_at               timestamptz,
    -- What was sent since the last success.
    unsuccessful_since      timestamptz,
    unsuccessful_attempts   bigint NOT NULL DEFAULT 0,
    unsuccessful_deliveries bigint NOT NULL DEFAULT 0,
    refused_status          smallint,
    -- How many POSTs may be out, by how the receiver behaves, and how soon it answers.
    concurrency             smallint NOT NULL DEFAULT 1,
    halved_at               timestamptz,
    latency_ms              real,
    -- The slots that are held: by which turn, and until when.
    slot_holders            bigint[] NOT NULL DEFAULT '{}',
    slot_leases             timestamptz[] NOT NULL DEFAULT '{}',
    recovering_since        timestamptz,
    -- The waiting delivery, by its next attempt, up to which recovery has brought them forward.
    recovered_through       timestamptz,
    receiver_since          timestamptz,
    -- Where searches for open deliveries begin (`claim_deliveries`). Whoever gives a delivery another
    -- level of urgency lowers it, or lets the delivery be due no earlier than now.
    open_from               timestamptz[] NOT NULL
                            DEFAULT array_fill('epoch'::timestamptz, ARRAY[6]),
    -- The accounting: written by each statement that opens or ends deliveries.
    events_succeeded        bigint NOT NULL DEFAULT 0,
    events_failed           bigint NOT NULL DEFAULT 0,
    events_cancelled        bigint NOT NULL DEFAULT 0,
    events_open             bigint NOT NULL DEFAULT 0,
    replays_accepted        bigint NOT NULL DEFAULT 0,
    replays_succeeded       bigint NOT NULL DEFAULT 0,
    replays_failed          bigint NOT NULL DEFAULT 0,
    replays_cancelled       bigint NOT NULL DEFAULT 0,
    replays_open            bigint NOT NULL DEFAULT 0,
    tests_accepted          bigint NOT NULL DEFAULT 0,
    tests_succeeded         bigint NOT NULL DEFAULT 0,
    tests_failed            bigint NOT NULL DEFAULT 0,
    tests_cancelled         bigint NOT NULL DEFAULT 0,
    tests_open              bigint NOT NULL DEFAULT 0,
    failed_arrived          bigint NOT NULL DEFAULT 0,
    cancelled_arrived       bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, webhook_id, version),
    FOREIGN KEY (tenant_id, webhook_id) REFERENCES webhook_lanes
);
SELECT isolate('lanes');
CREATE INDEX lanes_look_at ON lanes (look_at) WHERE look_at IS NOT NULL;
-- No sound lane is in it.
CREATE INDEX lanes_troubled ON lanes (tenant_id) WHERE unsuccessful_since IS NOT NULL;
-- Those that may be due at no time although something is open, and few.
CREATE INDEX lanes_stopped ON lanes (tenant_id, webhook_id)
    WHERE held_since IS NOT NULL OR paused_until IS NOT NULL;

-- How many webhooks there are, and lanes of them, by status: see `count_webhooks`.
CREATE TABLE webhook_counts (
    status   text NOT NULL,
    shard    integer NOT NULL,
    webhooks bigint NOT NULL,
    lanes    bigint NOT NULL,
    PRIMARY KEY (status, shard)
);
CREATE TRIGGER count_webhooks AFTER INSERT OR DELETE OR UPDATE OF status, deleted_at, lanes
    ON webhooks FOR EACH ROW EXECUTE FUNCTION count_webhooks();
CREATE TRIGGER renew_lane BEFORE INSERT OR UPDATE ON lanes
    FOR EACH ROW EXECUTE FUNCTION renew_lane();

CREATE VIEW present_lanes WITH (security_invoker = true) AS
SELECT k.tenant_id, k.id AS webhook_id, k.webhook_id AS of_webhook, newest.version, newest.next_sequence, newest.due_at,
       newest.ring_at, newest.held_since, newest.paused_until, newest.pause_level,
       newest.consecutive_failures, newest.failing_since, newest.last_success_at, newest.slow_at,
       newest.last_failures, newest.warned_at, newest.unsuccessful_since,
       newest.unsuccessful_attempts, newest.unsuccessful_deliveries, newest.refused_status,
       newest.concurrency, newest.halved_at, newest.latency_ms, newest.slot_holders, newest.slot_leases,
       newest.recovering_since, newest.recovered_through, newest.receiver_since, newest.open_from,
       newest.events_open, newest.replays_open, newest.tests_open, newest.replays_accepted
  FROM webhook_lanes AS k
 CROSS JOIN LATERAL (
    SELECT * FROM lanes AS l WHERE l.tenant_id = k.tenant_id AND l.webhook_id = k.id
     ORDER BY l.version DESC LIMIT 1) AS newest;

-- The slots of each lane, for whoever looks from outside: those that are held come first.
CREATE VIEW lane_slots WITH (security_invoker = true) AS
SELECT l.tenant_id, l.webhook_id, (place - 1)::smallint AS slot, l.version,
       lpad(to_hex(l.slot_holders[place]), 32, '0')::uuid AS holder,
       l.slot_leases[place] AS lease_until
  FROM present_lanes AS l
  JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = l.of_webhook
 CROSS JOIN LATERAL
       generate_series(1, greatest(w.max_in_flight, cardinality(l.slot_holders))) AS place;

-- One row: what is due on any lane before these moments was looked at, and has its number.
CREATE TABLE sweeps (
    id               boolean PRIMARY KEY DEFAULT true CHECK (id),
    through          timestamptz NOT NULL DEFAULT 'epoch',
    lanes_through    timestamptz NOT NULL DEFAULT 'epoch',
    numbered_through timestamptz NOT NULL DEFAULT 'epoch',
    -- What `settled_before` said when they were written last.
    settled          timestamptz NOT NULL DEFAULT 'epoch',
    -- When the tenants' figures were computed last.
    figured_at       timestamptz
) WITH (fillfactor = 10);
INSERT INTO sweeps DEFAULT VALUES;


-- Events and deliveries: history, partitioned by id, which is time --------------------------------

-- One row, which `release` sets to HISTORY_DAYS; the service's role may read it.
CREATE TABLE history_policy (
    id   boolean PRIMARY KEY DEFAULT true CHECK (id),
    days integer NOT NULL CHECK (days > 0)
);
INSERT INTO history_policy (days) VALUES (90);
-- They run with their owner's rights: for the service's role alone, which is granted them.
REVOKE EXECUTE ON FUNCTION make_history_partition(text, uuid, uuid) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION drop_history_partition(text, uuid) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION archive_audit_entries(uuid, bigint, bigint, bytea) FROM PUBLIC;

CREATE TABLE stored_events (
    tenant_id    uuid NOT NULL,
    id           uuid NOT NULL,
    -- The finding or session that it is about; its id has the millisecond of that one's change.
    subject_id   uuid,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The transaction that wrote it, so that a reader misses none that commits late.
    written_by   bigint NOT NULL DEFAULT (pg_current_xact_id()::text)::bigint,
    any_disabled boolean NOT NULL DEFAULT false,
    type         text NOT NULL,
    decisions    bytea NOT NULL,
    -- Null of a new finding: it is made of the finding's row, which nobody changes (`events`).
    payload      bytea,
    PRIMARY KEY (tenant_id, id),
    CHECK (payload IS NOT NULL OR (type = 'finding.created' AND subject_id IS NOT NULL))
) PARTITION BY RANGE (id);
SELECT isolate('stored_events');
CREATE INDEX events_disabled ON stored_events (tenant_id, id) WHERE any_disabled;

-- Events with the bytes that every receiver gets.
CREATE VIEW events WITH (security_invoker = true) AS
SELECT e.tenant_id, e.id, e.type, e.subject_id, e.created_at, e.written_by, e.any_disabled,
       e.decisions,
       coalesce(e.payload, finding_payload(
           finding_body(f.agent_id, written_time(f.created_at), f.data_json, f.detail, f.id,
                        f.principal, f.record_id, f.rule, f.session_id, f.severity, f.source,
                        f.title),
           e.id, written_time(e.created_at))) AS payload
  FROM stored_events AS e
  LEFT JOIN findings AS f
    ON e.payload IS NULL AND f.tenant_id = e.tenant_id AND f.id = e.subject_id;

-- What waits or is being sent. A row that is over is deleted here and inserted once into
-- `ended_deliveries`. No index holds what a claim changes (`lease_until`, `status`, `sequence` and
-- the like), and pages have room, so a claim leaves no entry in any index (HOT).
CREATE TABLE open_deliveries (
    tenant_id       uuid NOT NULL,
    id              uuid NOT NULL,
    webhook_id      uuid NOT NULL,
    event_id        uuid NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- While a worker holds it: until when.
    lease_until     timestamptz,
    sequence        bigint,
    -- The same, of an event that is not fresh: for its index.
    feed_sequence   bigint,
    claim_no        bigint NOT NULL DEFAULT 0,
    priority        smallint NOT NULL,
    attempts        smallint NOT NULL DEFAULT 0,
    claims_lost     smallint NOT NULL DEFAULT 0,
    -- Attempts ahead of the schedule (recovery).
    unscheduled     smallint NOT NULL DEFAULT 0,
    status_code     smallint,
    -- An event that had no attempt, nor a number but by a claim: all without a number are such.
    fresh           boolean NOT NULL DEFAULT false,
    kind            text NOT NULL CHECK (kind IN ('event', 'replay', 'test')),
    status          text NOT NULL DEFAULT 'pending' CHECK (status IN
                    ('pending', 'sending', 'retrying')),
    event_type      text NOT NULL,
    replay_of       uuid,
    job_id          uuid,
    attempted_at    timestamptz,
    -- What the receiver's last Retry-After asked for.
    asked_until     timestamptz,
    -- `failures.fingerprint` of the last attempt.
    failure         bigint,
    outcome         text,
    PRIMARY KEY (tenant_id, id),
    CHECK ((lease_until IS NULL) = (status <> 'sending')),
    CHECK (fresh OR kind <> 'event' OR (sequence IS NOT NULL AND feed_sequence = sequence))
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
SELECT isolate('open_deliveries');
CREATE INDEX open_deliveries_due
    ON open_deliveries (tenant_id, webhook_id, priority, fresh, next_attempt_at);
-- The sweep's: what has become due on any lane since it looked last.
CREATE INDEX open_deliveries_time ON open_deliveries (next_attempt_at);
CREATE INDEX open_deliveries_feed ON open_deliveries (tenant_id, webhook_id, feed_sequence)
    WHERE feed_sequence IS NOT NULL;
CREATE INDEX open_deliveries_replays ON open_deliveries (tenant_id, webhook_id, event_id)
    WHERE kind = 'replay';
CREATE INDEX open_deliveries_of_job ON open_deliveries (tenant_id, job_id, id)
    WHERE job_id IS NOT NULL;

-- History: each row is written once, unless an attempt is answered after it was cancelled. The last
-- attempt lies in the row: most deliveries have one. Only of a delivery that was cancelled before an
-- answer it does not.
CREATE TABLE ended_deliveries (
    tenant_id        uuid NOT NULL,
    id               uuid NOT NULL,
    webhook_id       uuid NOT NULL,
    event_id         uuid NOT NULL,
    created_at       timestamptz NOT NULL,
    finished_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempted_at     timestamptz,
    sequence         bigint,
    -- Of one that was cancelled, and whose answer may still come.
    claim_no         bigint,
    first_byte_ms    real,
    total_ms         real,
    dns_ms           real,
    connect_ms       real,
    tls_ms           real,
    priority         smallint NOT NULL,
    attempts         smallint NOT NULL,
    status_code      smallint,
    kind             text NOT NULL CHECK (kind IN ('event', 'replay', 'test')),
    status           text NOT NULL CHECK (status IN ('succeeded', 'failed', 'cancelled')),
    event_type       text NOT NULL,
    replay_of        uuid,
    job_id           uuid,
    failure          bigint,
    outcome          text,
    response_headers text,
    response_body    bytea,
    error            text,
    PRIMARY KEY (tenant_id, id)
) PARTITION BY RANGE (id);
SELECT isolate('ended_deliveries');
CREATE INDEX ended_deliveries_webhook ON ended_deliveries (tenant_id, webhook_id, id);
CREATE INDEX ended_deliveries_sequence ON ended_deliveries (tenant_id, webhook_id, sequence)
    WHERE kind = 'event';
-- Small, because few rows are like these: what history and bulk replay look for among the many. A
-- delivery that succeeds has an entry in none.
CREATE INDEX ended_deliveries_unsuccessful ON ended_deliveries (tenant_id, webhook_id, id)
    WHERE status IN ('failed', 'cancelled');
CREATE INDEX ended_deliveries_unhappy ON ended_deliveries (tenant_id, status, id)
    WHERE status IN ('failed', 'cancelled');
CREATE INDEX ended_deliveries_other_types ON ended_deliveries (tenant_id, webhook_id, event_type, id)
    WHERE event_type <> 'finding.created';
CREATE INDEX ended_deliveries_replays ON ended_deliveries (tenant_id, webhook_id, event_id)
    WHERE kind = 'replay';
CREATE INDEX ended_deliveries_of_job ON ended_deliveries (tenant_id, job_id, id)
    WHERE job_id IS NOT NULL;
-- Rows lie in the order in which they end, so it is a few pages, which next to no row changes.
CREATE INDEX ended_deliveries_finished ON ended_deliveries
    USING brin (finished_at) WITH (pages_per_range = 32, autosummarize = on);

-- Both as one, for whoever reads. A row's lease shows as its next attempt.
CREATE VIEW deliveries WITH (security_invoker = true) AS
SELECT tenant_id, id, webhook_id, event_id, event_type, kind, priority, sequence, replay_of, job_id,
       status, attempts, coalesce(lease_until, next_attempt_at) AS next_attempt_at, created_at,
       NULL::timestamptz AS finished_at, unscheduled, attempted_at, asked_until, outcome,
       status_code, failure, claim_no
  FROM open_deliveries
 UNION ALL
SELECT tenant_id, id, webhook_id, event_id, event_type, kind, priority, sequence, replay_of, job_id,
       status, attempts, NULL, created_at, finished_at, 0::smallint, attempted_at, NULL, outcome,
       status_code, failure, claim_no
  FROM ended_deliveries;

-- Attempts after which their delivery was tried again.
CREATE TABLE earlier_attempts (
    tenant_id        uuid NOT NULL,
    id               uuid NOT NULL,
    delivery_id      uuid NOT NULL,
    started_at       timestamptz NOT NULL,
    dns_ms           real,
    connect_ms       real,
    tls_ms           real,
    first_byte_ms    real,
    total_ms         real,
    number           smallint NOT NULL,
    status_code      smallint,
    outcome          text NOT NULL,
    response_headers text,
    response_body    bytea,
    error            text,
    PRIMARY KEY (tenant_id, delivery_id, id)
) PARTITION BY RANGE (id);
SELECT isolate('earlier_attempts');

-- All attempts, for whoever reads. `id` is not below its delivery's but for hosts' clocks.
CREATE VIEW delivery_attempts WITH (security_invoker = true) AS
SELECT tenant_id, delivery_id, id, number, outcome, started_at, dns_ms, connect_ms, tls_ms,
       first_byte_ms, total_ms, status_code, response_headers, response_body, error
  FROM earlier_attempts
 UNION ALL
SELECT tenant_id, id, id, attempts, coalesce(outcome, 'succeeded'), attempted_at, dns_ms,
       connect_ms, tls_ms, first_byte_ms, total_ms, status_code, response_headers, response_body,
       error
  FROM ended_deliveries
 WHERE attempts > 0 AND claim_no IS NULL;

-- Sums over webhooks, of hours that are over.
CREATE TABLE tenant_hours (
    tenant_id     uuid NOT NULL,
    at            timestamptz NOT NULL,
    accepted      integer NOT NULL DEFAULT 0,
    attempted     integer NOT NULL DEFAULT 0,
    succeeded     integer NOT NULL DEFAULT 0,
    failed        integer NOT NULL DEFAULT 0,
    retried       integer NOT NULL DEFAULT 0,
    within_5_ms   integer NOT NULL DEFAULT 0,
    within_10_ms  integer NOT NULL DEFAULT 0,
    within_25_ms  integer NOT NULL DEFAULT 0,
    within_50_ms  integer NOT NULL DEFAULT 0,
    within_100_ms integer NOT NULL DEFAULT 0,
    within_250_ms integer NOT NULL DEFAULT 0,
    within_500_ms integer NOT NULL DEFAULT 0,
    within_1_s    integer NOT NULL DEFAULT 0,
    within_2_s    integer NOT NULL DEFAULT 0,
    within_5_s    integer NOT NULL DEFAULT 0,
    within_10_s   integer NOT NULL DEFAULT 0,
    beyond_10_s   integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, at)
);
SELECT isolate('tenant_hours');

-- The same of each webhook. An hour's row is changed with each batch of outcomes, and each change
-- gives it a new version, as of a lane. A tenant's hours lie side by side, for charts of all.
CREATE TABLE delivery_hours (
    LIKE tenant_hours INCLUDING DEFAULTS,
    webhook_id uuid NOT NULL,
    version    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, at, webhook_id, version)
);
SELECT isolate('delivery_hours');

-- The most deliveries that waited in an hour, as looked at each minute; no row where none did.
CREATE TABLE backlog_hours (
    tenant_id uuid NOT NULL,
    at        timestamptz NOT NULL,
    most      bigint NOT NULL,
    PRIMARY KEY (tenant_id, at)
);
SELECT isolate('backlog_hours');


-- Jobs -------------------------------------------------------------------------------------------

CREATE TABLE jobs (
    tenant_id    uuid NOT NULL,
    id           uuid NOT NULL,
    kind         text NOT NULL,
    args         text NOT NULL,
    dedupe_key   text,
    status       text NOT NULL DEFAULT 'queued' CHECK (status IN
                 ('queued', 'running', 'retrying', 'succeeded', 'dead', 'cancelled')),
    attempts     bigint NOT NULL DEFAULT 0,
    claim_no     bigint NOT NULL DEFAULT 0,
    claims_lost  bigint NOT NULL DEFAULT 0,
    run_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    ring_at      timestamptz,
    locked_until timestamptz,
    progress     text,
    cursor       text,
    error        text,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at  timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK ((finished_at IS NULL) = (status IN ('queued', 'running', 'retrying')))
);
SELECT isolate('jobs');
CREATE UNIQUE INDEX jobs_dedupe ON jobs (tenant_id, kind, dedupe_key)
    WHERE dedupe_key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX jobs_open ON jobs (run_at) WHERE finished_at IS NULL;
CREATE INDEX jobs_of_kind ON jobs (tenant_id, kind, id);
-- What has outlived its history.
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_dead ON jobs (tenant_id) WHERE status = 'dead';
-- Whether the job of a record's pack gave up is asked by each request for it; a record's page asks
-- for all of them.
CREATE INDEX jobs_of_key ON jobs (tenant_id, kind, dedupe_key, id) WHERE dedupe_key IS NOT NULL;
-- Who asks again within a minute gets what a job found.
CREATE INDEX jobs_verified ON jobs (tenant_id, kind, dedupe_key, finished_at)
    WHERE kind = 'verify_audit' AND finished_at IS NOT NULL;

-- Counters of the whole stack. Few rows, changed every few seconds: room in each page keeps the
-- changes out of the index.
CREATE TABLE counters (
    tenant_id uuid NOT NULL,
    name      text NOT NULL,
    labels    text NOT NULL,
    value     double precision NOT NULL,
    PRIMARY KEY (tenant_id, name, labels)
) WITH (fillfactor = 50);
SELECT isolate('counters');


-- The transparency log: everyone's, so it names no tenant and has no policy -------------------------

-- One generation, until a restored database makes a successor necessary. `appointment` is the seal
-- under MASTER_KEYS of whoever began it.
CREATE TABLE log_generations (
    generation  bigint PRIMARY KEY,
    origin      text NOT NULL UNIQUE,
    key_id      text NOT NULL REFERENCES signing_keys,
    predecessor text,
    head_kept   boolean NOT NULL DEFAULT false,
    trouble     text,
    appointment bytea,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Commitments only, of every tenant: what is in the public log names neither tenant nor record. A
-- leaf of an older generation waits as well: for its place in the newest one. Each is inserted once
-- and updated once; the index of those that wait stays small. No foreign key, here and in the
-- tiles: it would cost a batch more than its hashes do.
CREATE TABLE log_leaves (
    id         uuid PRIMARY KEY,
    leaf_hash  bytea NOT NULL CHECK (length(leaf_hash) = 32),
    data       bytea NOT NULL,
    leaf_index bigint,
    generation bigint,
    CHECK ((generation IS NULL) = (leaf_index IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE UNIQUE INDEX log_leaves_hash ON log_leaves (leaf_hash);
CREATE UNIQUE INDEX log_leaves_index ON log_leaves (generation, leaf_index)
    WHERE leaf_index IS NOT NULL;
CREATE INDEX log_leaves_waiting ON log_leaves (id) WHERE leaf_index IS NULL;

CREATE TABLE log_tiles (
    generation bigint NOT NULL,
    level      bigint NOT NULL,
    number     bigint NOT NULL,
    data       bytea NOT NULL,
    PRIMARY KEY (generation, level, number)
);

-- Without a note it is prepared: seen by nobody but, by `unpublished_note`, its witnesses.
CREATE TABLE checkpoints (
    generation       bigint NOT NULL REFERENCES log_generations,
    size             bigint NOT NULL CHECK (size >= 0),
    root             bytea NOT NULL CHECK (length(root) = 32),
    note             bytea,
    prepared_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at     timestamptz,
    unpublished_note bytea,
    signed_at        timestamptz,
    PRIMARY KEY (generation, size),
    CHECK ((note IS NULL) = (published_at IS NULL))
);
CREATE UNIQUE INDEX checkpoints_prepared ON checkpoints (generation) WHERE note IS NULL;

-- What others say of a published checkpoint.
CREATE TABLE checkpoint_timestamps (
    generation bigint NOT NULL,
    size       bigint NOT NULL,
    response   bytea NOT NULL,
    tsa_chain  text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (generation, size),
    FOREIGN KEY (generation, size) REFERENCES checkpoints
);

CREATE TABLE checkpoint_cosignatures (
    generation  bigint NOT NULL,
    size        bigint NOT NULL,
    name        text NOT NULL,
    key_hash    bytea NOT NULL CHECK (length(key_hash) = 4),
    line        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (generation, size, name, key_hash),
    FOREIGN KEY (generation, size) REFERENCES checkpoints
);
-- How far a witness has come.
CREATE INDEX checkpoint_cosignatures_witness
    ON checkpoint_cosignatures (generation, name, key_hash, size);


-- The history of this database, by its epochs: the newest is the present one. Another begins when the
-- database lacks what the mark outside says it had committed. `common_until`: what was committed
-- before is in the epoch before as well; `lost`: what is known of the loss, as JSON.
CREATE TABLE epochs (
    number       bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    id           uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    began_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    common_until timestamptz,
    lost         jsonb,
    accepted_at  timestamptz
);
INSERT INTO epochs (accepted_at) VALUES (clock_timestamp());

-- Marks committed here, the newest of which is kept outside as well: of one day.
CREATE TABLE history_marks (
    n            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Every event before was committed, and had its numbers.
    common_until timestamptz NOT NULL
);
CREATE INDEX history_marks_at ON history_marks (at);


-- Audit chains -----------------------------------------------------------------------------------

-- `anchored` says how far the service has anchored it: no more than a hint where to look, which the
-- daily verification sets right.
CREATE TABLE audit_heads (
    tenant_id uuid PRIMARY KEY REFERENCES tenants,
    seq       bigint NOT NULL,
    hash      bytea NOT NULL CHECK (length(hash) = 32),
    anchored  bigint NOT NULL DEFAULT 0
);
SELECT isolate('audit_heads');
CREATE INDEX audit_heads_due ON audit_heads (tenant_id) WHERE seq > anchored;

CREATE TABLE audit_entries (
    tenant_id uuid NOT NULL REFERENCES tenants,
    seq       bigint NOT NULL,
    -- Null where a segment has it.
    body      bytea,
    hash      bytea NOT NULL,
    -- Copies of what the body says, to filter by; verification compares them. By bytes, so that an
    -- index finds the beginning of an action.
    action    text COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL,
    actor     text COLLATE "C" NOT NULL,
    target    text COLLATE "C" NOT NULL,
    -- Null where the body has none.
    outcome   text COLLATE "C",
    PRIMARY KEY (tenant_id, seq)
);
SELECT isolate('audit_entries');
CREATE INDEX audit_entries_action ON audit_entries (tenant_id, action, seq);
CREATE INDEX audit_entries_at ON audit_entries (tenant_id, at);
CREATE INDEX audit_entries_actor ON audit_entries (tenant_id, actor, seq);
CREATE INDEX audit_entries_target ON audit_entries (tenant_id, target, seq);
-- Most acts succeed: those are found beside the index.
CREATE INDEX audit_entries_outcome ON audit_entries (tenant_id, outcome, seq)
    WHERE outcome <> 'success';

-- The bodies of old entries, in the object store: from one number to another, with no gap from 1 on.
CREATE TABLE audit_segments (
    tenant_id uuid NOT NULL,
    id        uuid NOT NULL,
    first_seq bigint NOT NULL,
    last_seq  bigint NOT NULL,
    sha256    bytea NOT NULL CHECK (length(sha256) = 32),
    size      bigint NOT NULL,
    bytes     bytea,
    blob      uuid,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, first_seq),
    CHECK (first_seq <= last_seq),
    CHECK (num_nonnulls(bytes, blob) > 0)
);
SELECT isolate('audit_segments');
CREATE INDEX audit_segments_last ON audit_segments (tenant_id, last_seq);
CREATE INDEX audit_segments_waiting ON audit_segments (tenant_id, id)
    WHERE bytes IS NOT NULL AND blob IS NOT NULL;
CREATE TRIGGER audit_segments_erased AFTER DELETE ON audit_segments
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION forget_blobs('id');

-- The last `access.refused` of each key or person, and how often it was refused since: at most one entry of a
-- key is written in an hour.
CREATE TABLE refused_access (
    tenant_id  uuid NOT NULL,
    key_id     uuid NOT NULL,
    entered_at timestamptz NOT NULL DEFAULT '-infinity',
    counted    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, key_id)
);
SELECT isolate('refused_access');

-- Who read the content of which record on which day (UTC): one `record.read` each, where AUDIT_READS
-- is on. Past days are deleted.
CREATE TABLE record_reads (
    tenant_id uuid NOT NULL,
    day       date NOT NULL,
    key_id    uuid NOT NULL,
    record_id uuid NOT NULL,
    PRIMARY KEY (tenant_id, day, key_id, record_id)
);
SELECT isolate('record_reads');
CREATE INDEX record_reads_day ON record_reads (day);

-- The heads of chains that were put into the log: `leaf_hash` finds the leaf, which says the rest.
CREATE TABLE audit_anchors (
    tenant_id uuid NOT NULL,
    seq       bigint NOT NULL CHECK (seq > 0),
    hash      bytea NOT NULL CHECK (length(hash) = 32),
    at        timestamptz NOT NULL,
    leaf_hash bytea NOT NULL CHECK (length(leaf_hash) = 32),
    PRIMARY KEY (tenant_id, seq),
    FOREIGN KEY (tenant_id) REFERENCES tenants
);
SELECT isolate('audit_anchors');

-- What verifying found, each told once. Of the service's own (no tenant): what is wrong with the
-- log, and chains that no tenant has.
CREATE TABLE audit_breaks (
    tenant_id   uuid NOT NULL,
    subject     text NOT NULL,
    seq         bigint NOT NULL,
    reason      text NOT NULL,
    expected    text NOT NULL,
    found       text NOT NULL,
    detected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    healed_at   timestamptz,
    PRIMARY KEY (tenant_id, subject, seq, reason)
);
SELECT isolate('audit_breaks');
CREATE INDEX audit_breaks_open ON audit_breaks (tenant_id) WHERE healed_at IS NULL;

-- What keeps heads or checkpoints from being anchored, one row a part for as long as it does; an
-- alarm is a witness that has seen another log of our name.
CREATE TABLE anchoring_troubles (
    part   text PRIMARY KEY,
    since  timestamptz NOT NULL,
    detail text NOT NULL,
    alarm  boolean NOT NULL
);


-- Session statements -------------------------------------------------------------------------------

-- What a completed session held, signed once. It names digests, and no content: it never expires.
CREATE TABLE session_statements (
    tenant_id  uuid NOT NULL,
    session_id uuid NOT NULL,
    sha256     bytea NOT NULL CHECK (length(sha256) = 32),
    body       bytea NOT NULL,
    key_id     text NOT NULL REFERENCES signing_keys,
    signature  bytea NOT NULL CHECK (length(signature) = 64),
    records    bigint NOT NULL,
    root       bytea NOT NULL CHECK (length(root) = 32),
    PRIMARY KEY (tenant_id, session_id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions
);
SELECT isolate('session_statements');
-- From a leaf of the log to its statement.
CREATE UNIQUE INDEX session_statements_sha256 ON session_statements (tenant_id, sha256);

-- The digests under its root, in order: so whoever loses or adds a record later is found out, and
-- which it was. `root` is that over one part; `first_id` is the part's first record.
CREATE TABLE session_digests (
    tenant_id  uuid NOT NULL,
    session_id uuid NOT NULL,
    number     bigint NOT NULL,
    first_id   uuid NOT NULL,
    root       bytea NOT NULL CHECK (length(root) = 32),
    digests    bytea NOT NULL CHECK (length(digests) % 32 = 0),
    PRIMARY KEY (tenant_id, session_id, number),
    FOREIGN KEY (tenant_id, session_id) REFERENCES session_statements
);
SELECT isolate('session_digests');
-- Digests do not shrink.
ALTER TABLE session_digests ALTER COLUMN digests SET STORAGE EXTERNAL;


-- Period exports ----------------------------------------------------------------------------------

-- What was signed stays when the parts have gone.
CREATE TABLE exports (
    tenant_id  uuid NOT NULL REFERENCES tenants,
    id         uuid NOT NULL,
    since      timestamptz NOT NULL,
    until      timestamptz NOT NULL,
    agent_id   uuid,
    -- It may be pruned before its export.
    job_id     uuid NOT NULL,
    created_by uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    records    bigint,
    size       bigint NOT NULL DEFAULT 0,
    statement  bytea,
    key_id     text REFERENCES signing_keys,
    signature  bytea CHECK (length(signature) = 64),
    sha256     bytea CHECK (length(sha256) = 32),
    made_at    timestamptz,
    deleted_at timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents,
    CHECK (since < until),
    CHECK ((made_at IS NULL) = (sha256 IS NULL)),
    CHECK (made_at IS NULL OR signature IS NOT NULL)
);
SELECT isolate('exports');
CREATE INDEX exports_kept ON exports (tenant_id, id) WHERE deleted_at IS NULL;

CREATE TABLE export_parts (
    tenant_id uuid NOT NULL,
    export_id uuid NOT NULL,
    starts    bigint NOT NULL,
    size      bigint NOT NULL CHECK (size > 0),
    bytes     bytea,
    blob      uuid,
    PRIMARY KEY (tenant_id, export_id, starts),
    FOREIGN KEY (tenant_id, export_id) REFERENCES exports,
    CHECK (num_nonnulls(bytes, blob) > 0)
);
SELECT isolate('export_parts');
CREATE INDEX export_parts_waiting ON export_parts (tenant_id, export_id, starts)
    WHERE bytes IS NOT NULL AND blob IS NOT NULL;
-- Sealed bytes do not shrink.
ALTER TABLE export_parts ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE TRIGGER export_parts_stored AFTER INSERT ON export_parts
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_stored_records();
CREATE TRIGGER export_parts_gone AFTER DELETE ON export_parts
    REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_stored_records();
CREATE TRIGGER export_parts_erased AFTER DELETE ON export_parts
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION forget_blobs('export_id', 'starts');

CREATE TABLE export_takers (
    tenant_id uuid NOT NULL,
    export_id uuid NOT NULL,
    key_id    uuid NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, export_id, key_id),
    FOREIGN KEY (tenant_id, export_id) REFERENCES exports
);
SELECT isolate('export_takers');


-- Evidence packs ---------------------------------------------------------------------------------

-- A pack goes with its bundle, whoever deletes that: the foreign key is what makes it so. `recipe` is
-- what of the service's own it was made with, `further` names its further files.
CREATE TABLE evidence_packs (
    tenant_id       uuid NOT NULL,
    id              uuid NOT NULL,
    record_id       uuid,
    session_id      uuid,
    sha256          bytea NOT NULL CHECK (length(sha256) = 32),
    size            bigint NOT NULL,
    generation      bigint NOT NULL,
    checkpoint_size bigint NOT NULL,
    evidence_rank   bigint NOT NULL,
    key_id          text NOT NULL REFERENCES signing_keys,
    recipe          text NOT NULL,
    further         text NOT NULL,
    superseded_at   timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, record_id) REFERENCES bundles ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, session_id) REFERENCES session_statements,
    CHECK (num_nonnulls(record_id, session_id) = 1)
);
SELECT isolate('evidence_packs');
CREATE INDEX evidence_packs_record ON evidence_packs (tenant_id, record_id);
CREATE UNIQUE INDEX evidence_packs_stored ON evidence_packs (tenant_id, record_id)
    WHERE superseded_at IS NULL;
CREATE INDEX evidence_packs_session ON evidence_packs (tenant_id, session_id)
    WHERE session_id IS NOT NULL;
CREATE UNIQUE INDEX evidence_packs_session_stored ON evidence_packs (tenant_id, session_id)
    WHERE session_id IS NOT NULL AND superseded_at IS NULL;
CREATE INDEX evidence_packs_replaced ON evidence_packs (tenant_id, id)
    WHERE superseded_at IS NOT NULL;

-- A part has either bytes, or the records whose bundles are its lines: these are not stored again,
-- so they expire from a session's pack as well.
CREATE TABLE evidence_pack_parts (
    tenant_id  uuid NOT NULL,
    pack_id    uuid NOT NULL,
    starts     bigint NOT NULL,
    bytes      bytea,
    blob       uuid,
    record_ids uuid[],
    PRIMARY KEY (tenant_id, pack_id, starts),
    -- Parts are stored first: only with the last is the digest of the whole known.
    FOREIGN KEY (tenant_id, pack_id) REFERENCES evidence_packs ON DELETE CASCADE
            DEFERRABLE INITIALLY DEFERRED,
    CHECK ((num_nonnulls(bytes, blob) > 0) = (record_ids IS NULL))
);
SELECT isolate('evidence_pack_parts');
CREATE INDEX evidence_pack_parts_waiting ON evidence_pack_parts (tenant_id, pack_id, starts)
    WHERE bytes IS NOT NULL AND blob IS NOT NULL;
CREATE TRIGGER evidence_pack_parts_erased AFTER DELETE ON evidence_pack_parts
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION forget_blobs('pack_id', 'starts');
-- Sealed bytes do not shrink.
ALTER TABLE evidence_pack_parts ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- Who has had a pack: each key and each link once, and everybody without either together.
CREATE TABLE evidence_exports (
    tenant_id uuid NOT NULL,
    pack_id   uuid NOT NULL,
    taker     text NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, pack_id, taker),
    FOREIGN KEY (tenant_id, pack_id) REFERENCES evidence_packs ON DELETE CASCADE
);
SELECT isolate('evidence_exports');


-- Rules -------------------------------------------------------------------------------------------

-- One row a tenant, made before its first rule: what is to be judged is kept from then on. Whoever
-- changes a rule and whoever commits verdicts locks it, so no verdict is of a version that had ended.
CREATE TABLE rule_turns (
    tenant_id    uuid PRIMARY KEY REFERENCES tenants,
    -- When a rule was changed last. No record that is stored afterwards is older.
    changed_at   timestamptz NOT NULL DEFAULT 'epoch',
    locked_until timestamptz,
    -- Its rules were slow: until then an evaluator of its own kind serves it.
    slow_until   timestamptz,
    -- Work is looked for from here on, and now and then from the beginning: entries of what was
    -- judged stay in the index while any old snapshot stands.
    work_from    timestamptz NOT NULL DEFAULT 'epoch'
) WITH (fillfactor = 50);
SELECT isolate('rule_turns');

CREATE TABLE rules (
    tenant_id       uuid NOT NULL REFERENCES tenants,
    id              uuid NOT NULL,
    name            text NOT NULL,
    version         bigint NOT NULL,
    enabled         boolean NOT NULL,
    -- Of this version: evaluations that failed, the newest of them, and those that were ended.
    errors          bigint NOT NULL DEFAULT 0,
    ended           bigint NOT NULL DEFAULT 0,
    last_error_json text,
    erred_at        timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz,
    PRIMARY KEY (tenant_id, id)
);
SELECT isolate('rules');
CREATE UNIQUE INDEX rules_name ON rules (tenant_id, name) WHERE deleted_at IS NULL;
CREATE INDEX rules_erred ON rules (erred_at) WHERE erred_at IS NOT NULL;

-- Never changed.
CREATE TABLE rule_versions (
    tenant_id    uuid NOT NULL,
    rule_id      uuid NOT NULL,
    version      bigint NOT NULL,
    name         text NOT NULL,
    subject      text NOT NULL CHECK (subject IN ('record', 'step', 'session')),
    condition    text NOT NULL,
    severity     text NOT NULL CHECK (severity IN ('info', 'low', 'medium', 'high', 'critical')),
    title        text NOT NULL,
    detail       text,
    dedupe       text,
    max_per_hour bigint NOT NULL,
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, rule_id, version),
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules
);
SELECT isolate('rule_versions');

-- When a version was on: what was created in a period is judged by its version, however late.
CREATE TABLE rule_periods (
    tenant_id uuid NOT NULL,
    rule_id   uuid NOT NULL,
    since     timestamptz NOT NULL,
    until     timestamptz,
    version   bigint NOT NULL,
    PRIMARY KEY (tenant_id, rule_id, since),
    FOREIGN KEY (tenant_id, rule_id, version) REFERENCES rule_versions
);
SELECT isolate('rule_periods');

-- What is still to be judged. Written with the record or the session's end, deleted with the
-- verdicts: nothing is behind a reader, whenever it commits.
CREATE TABLE rule_work (
    tenant_id  uuid NOT NULL,
    at         timestamptz NOT NULL,
    subject_id uuid NOT NULL,
    is_session boolean NOT NULL,
    PRIMARY KEY (tenant_id, at, subject_id)
);
SELECT isolate('rule_work');
CREATE TRIGGER records_followed AFTER INSERT ON records
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION emit_followed();
CREATE TRIGGER sessions_followed AFTER INSERT ON sessions
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION emit_followed();

CREATE TRIGGER records_to_judge AFTER INSERT ON records
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION queue_for_rules();
CREATE TRIGGER sessions_to_judge AFTER UPDATE OF status ON sessions
    FOR EACH ROW WHEN (OLD.status = 'open' AND NEW.status = 'completed')
    EXECUTE FUNCTION queue_for_rules();

-- One row a match: a version matches a record or session once, whoever looks at it.
CREATE TABLE rule_matches (
    tenant_id  uuid NOT NULL,
    rule_id    uuid NOT NULL,
    version    bigint NOT NULL,
    subject_id uuid NOT NULL,
    matched    bigint NOT NULL,
    PRIMARY KEY (tenant_id, rule_id, version, subject_id)
);
SELECT isolate('rule_matches');

-- A rule's matches by the hour. Findings beyond its limit are counted, and told once the hour ends.
CREATE TABLE rule_hours (
    tenant_id  uuid NOT NULL,
    rule_id    uuid NOT NULL,
    hour       timestamptz NOT NULL,
    matched    bigint NOT NULL,
    found      bigint NOT NULL,
    withheld   bigint NOT NULL,
    -- The newest that was withheld: its session and record, and the version.
    session_id uuid,
    record_id  uuid,
    version    bigint,
    told       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, rule_id, hour)
);
SELECT isolate('rule_hours');
CREATE INDEX rule_hours_to_tell ON rule_hours (tenant_id, hour) WHERE withheld > 0 AND NOT told;

-- Texts that made a finding lately, by their SHA-256.
CREATE TABLE rule_dedupes (
    tenant_id uuid NOT NULL,
    rule_id   uuid NOT NULL,
    text_hash bytea NOT NULL CHECK (length(text_hash) = 32),
    until     timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, rule_id, text_hash)
);
SELECT isolate('rule_dedupes');
CREATE INDEX rule_dedupes_until ON rule_dedupes (until);


DROP FUNCTION isolate(text, text);
