"""Records: metadata, signed bundles, the keys that sign them, and their leaves in the log."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SIGNING = """
-- The service's own, like the log: no tenant, and so no wall.
CREATE TABLE signing_keys (
    key_id             text PRIMARY KEY,
    purpose            text NOT NULL CHECK (purpose IN ('bundle', 'log')),
    public_key         bytea NOT NULL CHECK (length(public_key) = 32),
    sealed_private_key bytea NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at         timestamptz
);
CREATE UNIQUE INDEX signing_keys_current ON signing_keys (purpose) WHERE retired_at IS NULL;
"""

RECORDS = """
ALTER TABLE tenants
    ADD COLUMN expired_through   timestamptz,
    ADD COLUMN patrolled_at      timestamptz,
    ADD COLUMN patrolled_id      uuid,
    ADD COLUMN sealed_search_key bytea;

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
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions
);
CREATE INDEX records_session ON records (tenant_id, session_id, id);
CREATE INDEX records_agent ON records (tenant_id, agent_id, id);
CREATE INDEX records_principal ON records (tenant_id, principal, id);
CREATE INDEX records_kind ON records (tenant_id, kind, id);
CREATE INDEX records_created_at ON records (tenant_id, created_at, id);
-- A public record is asked for by its id alone.
CREATE INDEX records_id ON records (id);

-- A row gone is a bundle expired.
CREATE TABLE bundles (
    tenant_id uuid NOT NULL,
    record_id uuid NOT NULL,
    sha256    bytea NOT NULL CHECK (length(sha256) = 32),
    size      bigint NOT NULL,
    location  text NOT NULL DEFAULT 'database' CHECK (location IN ('database')),
    bytes     bytea,
    PRIMARY KEY (tenant_id, record_id),
    FOREIGN KEY (tenant_id, record_id) REFERENCES records
);
-- Sealed bytes do not shrink.
ALTER TABLE bundles ALTER COLUMN bytes SET STORAGE EXTERNAL;

ALTER TABLE findings ADD CONSTRAINT findings_record
    FOREIGN KEY (tenant_id, record_id) REFERENCES records NOT VALID;
CREATE INDEX findings_record ON findings (tenant_id, record_id, id) WHERE record_id IS NOT NULL;
"""

# Words are keyed hashes, under a key of each tenant's own: who forgets the tenant finds nothing. So
# these two tables need no wall, and must have none: behind one, PostgreSQL uses no index of words,
# because their operator is not known to be leakproof.
WORDS = """
CREATE TABLE {table} (
    tenant_id uuid NOT NULL,
    record_id uuid NOT NULL,
    words     tsvector NOT NULL,
    PRIMARY KEY (tenant_id, record_id)
);
-- Each search reads the list of what is not yet in the index, so that is kept short.
CREATE INDEX {table}_words ON {table} USING gin (words) WITH (gin_pending_list_limit = 256);
-- How common a word is decides whether the index is used: ten for each of the target are known.
ALTER TABLE {table} ALTER COLUMN words SET STATISTICS 500;
"""

LEAVES = """
-- Commitments only, of every tenant: what is in the public log names neither tenant nor record.
CREATE TABLE log_leaves (
    id         uuid PRIMARY KEY,
    leaf_hash  bytea NOT NULL CHECK (length(leaf_hash) = 32),
    data       bytea NOT NULL,
    leaf_index bigint
);
CREATE UNIQUE INDEX log_leaves_hash ON log_leaves (leaf_hash);
CREATE UNIQUE INDEX log_leaves_index ON log_leaves (leaf_index) WHERE leaf_index IS NOT NULL;
CREATE INDEX log_leaves_waiting ON log_leaves (id) WHERE leaf_index IS NULL;
"""

WALL = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
CREATE POLICY {table}_of_this_tenant ON {table} USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""


def upgrade() -> None:
    """Create what records need."""
    for statements in (SIGNING, RECORDS, LEAVES):
        op.execute(statements)
    for table in ("record_words", "bundle_words"):
        op.execute(WORDS.format(table=table))
    for table in ("records", "bundles"):
        op.execute(WALL.format(table=table))
