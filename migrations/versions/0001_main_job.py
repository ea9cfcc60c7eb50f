"""The main job: tenants, keys, agents, findings, webhooks, deliveries, audit and jobs."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

CALLERS = """
CREATE TABLE tenants (
    id                    uuid PRIMARY KEY,
    name                  text NOT NULL,
    bundle_visibility     text NOT NULL DEFAULT 'private'
                          CHECK (bundle_visibility IN ('public', 'private')),
    bundle_retention_days bigint CHECK (bundle_retention_days BETWEEN 1 AND 3650),
    anchoring_enabled     boolean NOT NULL DEFAULT true,
    notification_email    text,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp()
);

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
    PRIMARY KEY (tenant_id, id),
    CHECK ((pin_agent_id IS NULL) = (pin_principal IS NULL))
);
-- One of the two lookups that find a tenant, so this unique index cannot begin with it.
CREATE UNIQUE INDEX api_keys_digest ON api_keys (digest);

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
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);

CREATE TABLE audit_heads (
    tenant_id uuid PRIMARY KEY REFERENCES tenants,
    seq       bigint NOT NULL,
    hash      bytea NOT NULL CHECK (length(hash) = 32)
);

CREATE TABLE audit_entries (
    tenant_id uuid NOT NULL REFERENCES tenants,
    seq       bigint NOT NULL,
    body      bytea NOT NULL,
    hash      bytea NOT NULL,
    action    text NOT NULL,
    at        timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, seq)
);
CREATE INDEX audit_entries_action ON audit_entries (tenant_id, action, seq);
CREATE INDEX audit_entries_at ON audit_entries (tenant_id, at);
"""

AGENTS = """
CREATE TABLE agents (
    tenant_id     uuid NOT NULL REFERENCES tenants,
    id            uuid NOT NULL,
    name          text NOT NULL,
    description   text,
    metadata_json text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, id)
);

CREATE TABLE sessions (
    tenant_id     uuid NOT NULL,
    id            uuid NOT NULL,
    agent_id      uuid NOT NULL,
    principal     text NOT NULL,
    title         text,
    metadata_json text,
    status        text NOT NULL CHECK (status IN ('open', 'completed')),
    outcome       text CHECK (outcome IN ('succeeded', 'failed', 'cancelled')),
    summary       text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at  timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, agent_id) REFERENCES agents,
    CHECK ((status = 'completed') = (outcome IS NOT NULL AND completed_at IS NOT NULL))
);
CREATE INDEX sessions_agent ON sessions (tenant_id, agent_id, id);
CREATE INDEX sessions_principal ON sessions (tenant_id, principal, id);
CREATE INDEX sessions_status ON sessions (tenant_id, status, id);

CREATE TABLE findings (
    tenant_id  uuid NOT NULL,
    id         uuid NOT NULL,
    session_id uuid NOT NULL,
    record_id  uuid,
    agent_id   uuid NOT NULL,
    principal  text NOT NULL,
    rule       text NOT NULL,
    severity   text NOT NULL CHECK (severity IN ('info', 'low', 'medium', 'high', 'critical')),
    title      text NOT NULL,
    detail     text,
    data_json  text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions
);
CREATE INDEX findings_session ON findings (tenant_id, session_id, id);
CREATE INDEX findings_agent ON findings (tenant_id, agent_id, id);
CREATE INDEX findings_principal ON findings (tenant_id, principal, id);
CREATE INDEX findings_severity ON findings (tenant_id, severity, id);
CREATE INDEX findings_rule ON findings (tenant_id, rule, id);
"""

WEBHOOKS = """
CREATE TABLE webhooks (
    tenant_id       uuid NOT NULL REFERENCES tenants,
    id              uuid NOT NULL,
    url             text NOT NULL,
    event_types     text[] CHECK (cardinality(event_types) > 0),
    description     text,
    max_in_flight   smallint NOT NULL CHECK (max_in_flight BETWEEN 1 AND 64),
    status          text NOT NULL CHECK (status IN ('enabled', 'disabled')),
    disabled_reason text,
    sealed_secrets  bytea NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz,
    PRIMARY KEY (tenant_id, id)
);

-- What every event asks.
CREATE INDEX webhooks_live ON webhooks (tenant_id) WHERE deleted_at IS NULL;

CREATE TABLE lanes (
    tenant_id            uuid NOT NULL,
    webhook_id           uuid NOT NULL,
    next_sequence        bigint NOT NULL DEFAULT 1,
    due_at               timestamptz,
    ring_at              timestamptz,
    paused_until         timestamptz,
    pause_level          smallint NOT NULL DEFAULT 0,
    consecutive_failures bigint NOT NULL DEFAULT 0,
    failing_since        timestamptz,
    last_success_at      timestamptz,
    slow_at              timestamptz,
    events_succeeded     bigint NOT NULL DEFAULT 0,
    events_failed        bigint NOT NULL DEFAULT 0,
    events_cancelled     bigint NOT NULL DEFAULT 0,
    replays_accepted     bigint NOT NULL DEFAULT 0,
    replays_succeeded    bigint NOT NULL DEFAULT 0,
    replays_failed       bigint NOT NULL DEFAULT 0,
    replays_cancelled    bigint NOT NULL DEFAULT 0,
    tests_accepted       bigint NOT NULL DEFAULT 0,
    tests_succeeded      bigint NOT NULL DEFAULT 0,
    tests_failed         bigint NOT NULL DEFAULT 0,
    tests_cancelled      bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, webhook_id),
    FOREIGN KEY (tenant_id, webhook_id) REFERENCES webhooks
) WITH (fillfactor = 50);
CREATE INDEX lanes_due_at ON lanes (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE lane_slots (
    tenant_id   uuid NOT NULL,
    webhook_id  uuid NOT NULL,
    slot        smallint NOT NULL,
    holder      uuid,
    lease_until timestamptz,
    PRIMARY KEY (tenant_id, webhook_id, slot),
    FOREIGN KEY (tenant_id, webhook_id) REFERENCES lanes
) WITH (fillfactor = 50);
"""

HISTORY = """
CREATE TABLE events (
    tenant_id    uuid NOT NULL,
    id           uuid NOT NULL,
    type         text NOT NULL,
    payload      bytea NOT NULL,
    decisions    bytea NOT NULL,
    any_disabled boolean NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX events_disabled ON events (tenant_id, id) WHERE any_disabled;

CREATE TABLE deliveries (
    tenant_id       uuid NOT NULL,
    id              uuid NOT NULL,
    webhook_id      uuid NOT NULL,
    event_id        uuid NOT NULL,
    event_type      text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('event', 'replay', 'test')),
    priority        smallint NOT NULL,
    sequence        bigint,
    replay_of       uuid,
    job_id          uuid,
    status          text NOT NULL DEFAULT 'pending' CHECK (status IN
                    ('pending', 'sending', 'retrying', 'succeeded', 'failed', 'cancelled')),
    attempts        smallint NOT NULL DEFAULT 0,
    claim_no        bigint NOT NULL DEFAULT 0,
    claims_lost     smallint NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at     timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK ((finished_at IS NULL) = (status IN ('pending', 'sending', 'retrying'))),
    CHECK ((finished_at IS NULL) = (next_attempt_at IS NOT NULL))
) PARTITION BY RANGE (id);
CREATE INDEX deliveries_history ON deliveries (tenant_id, webhook_id, id);
CREATE INDEX deliveries_sequence ON deliveries (tenant_id, webhook_id, sequence)
    WHERE kind = 'event' AND sequence IS NOT NULL;
-- Small, because few rows are like these: what history and bulk replay look for among the many.
CREATE INDEX deliveries_unsuccessful ON deliveries (tenant_id, webhook_id, id)
    WHERE status IN ('failed', 'cancelled');
CREATE INDEX deliveries_other_types ON deliveries (tenant_id, webhook_id, event_type, id)
    WHERE event_type <> 'finding.created';
CREATE INDEX deliveries_replays ON deliveries (tenant_id, webhook_id, event_id)
    WHERE kind = 'replay';
CREATE INDEX deliveries_event ON deliveries (tenant_id, event_id);
CREATE INDEX deliveries_open ON deliveries (tenant_id, webhook_id, priority, next_attempt_at)
    WHERE finished_at IS NULL;
CREATE INDEX deliveries_unnumbered ON deliveries (tenant_id, webhook_id, id)
    WHERE sequence IS NULL AND kind = 'event';

CREATE TABLE delivery_attempts (
    tenant_id        uuid NOT NULL,
    id               uuid NOT NULL,
    delivery_id      uuid NOT NULL,
    number           smallint NOT NULL,
    outcome          text NOT NULL,
    started_at       timestamptz NOT NULL,
    dns_ms           real,
    connect_ms       real,
    tls_ms           real,
    first_byte_ms    real,
    total_ms         real,
    status_code      smallint,
    response_headers text,
    response_body    bytea,
    error            text,
    PRIMARY KEY (tenant_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX delivery_attempts_delivery ON delivery_attempts (tenant_id, delivery_id);
"""

JOBS = """
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
CREATE UNIQUE INDEX jobs_dedupe ON jobs (tenant_id, kind, dedupe_key)
    WHERE dedupe_key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX jobs_open ON jobs (run_at) WHERE finished_at IS NULL;
"""

# A delivery's id carries the time of its event, so both lie in partitions of the same age and sort
# alike; the random part is new (RFC 9562 section 5.7). PostgreSQL makes these only from version 18.
FUNCTIONS = """
-- Whose key is this? Asked before the tenant is known, by every request: so it opens the walls for
-- this one question, in one round trip. plpgsql keeps the plan.
CREATE FUNCTION find_api_key(wanted bytea)
RETURNS TABLE (tenant_id uuid, id uuid, role text, pin_agent_id uuid, pin_principal text)
LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('app.every_tenant', true), '');
BEGIN
    -- Not a SET clause of the function: for that PostgreSQL wants a superuser.
    PERFORM set_config('app.every_tenant', 'on', true);
    RETURN QUERY
    SELECT k.tenant_id, k.id, k.role, k.pin_agent_id, k.pin_principal FROM api_keys AS k
     WHERE k.digest = wanted AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
    PERFORM set_config('app.every_tenant', before, true);
END $$;

CREATE FUNCTION id_beside(event_id uuid) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(substr(uuid_send(event_id), 1, 8)
                  || substr(uuid_send(gen_random_uuid()), 9), 'hex')::uuid
$$;

CREATE FUNCTION history_partition(parent text, lower_bound uuid) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF parent NOT IN ('events', 'deliveries', 'delivery_attempts') THEN
        RAISE EXCEPTION 'no history in table %', parent;
    END IF;
    RETURN parent || '_' || substr(replace(lower_bound::text, '-', ''), 1, 12);
END $$;

-- The service's own role may not create or drop tables; these two doors let it make and drop
-- partitions of its history and nothing else. Attaching a table made beforehand takes a weaker lock
-- than creating it as a partition.
CREATE FUNCTION make_history_partition(parent text, lower_bound uuid, upper_bound uuid)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    child text := history_partition(parent, lower_bound);
BEGIN
    IF to_regclass('public.' || child) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE public.%I'
                   ' (LIKE public.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', child, parent);
    EXECUTE format('ALTER TABLE public.%I ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)',
                   parent, child, lower_bound, upper_bound);
    RETURN true;
END $$;

CREATE FUNCTION drop_history_partition(parent text, lower_bound uuid)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    EXECUTE format('DROP TABLE public.%I', history_partition(parent, lower_bound));
END $$;
"""

# FORCE binds the tables' owner too: on a platform with a single role the walls stand all the same.
WALL = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
CREATE POLICY {table}_of_this_tenant ON {table} USING (
    {column} = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""

WALLED = (
    "api_keys",
    "idempotency_keys",
    "audit_heads",
    "audit_entries",
    "agents",
    "sessions",
    "findings",
    "webhooks",
    "lanes",
    "lane_slots",
    "events",
    "deliveries",
    "delivery_attempts",
    "jobs",
)


def upgrade() -> None:
    """Create everything the main job needs."""
    for statements in (CALLERS, AGENTS, WEBHOOKS, HISTORY, JOBS, FUNCTIONS):
        op.execute(statements)
    op.execute(WALL.format(table="tenants", column="id"))
    for table in WALLED:
        op.execute(WALL.format(table=table, column="tenant_id"))
