"""Anchoring: what ties each tenant's audit chain to the log, and the log to others' clocks."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# A chain's name in the public log is the SHA-256 of this salt, so the log names no tenant. The
# default is for tenants made before, and by processes of the release before: 244 random bits.
SALTS = """
ALTER TABLE tenants
    ADD COLUMN chain_salt bytea NOT NULL
        DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
        CHECK (length(chain_salt) = 32);
"""

# The heads of chains that were put into the log: `leaf_hash` finds the leaf, which says the rest.
ANCHORS = """
CREATE TABLE audit_anchors (
    tenant_id uuid NOT NULL,
    seq       bigint NOT NULL CHECK (seq > 0),
    hash      bytea NOT NULL CHECK (length(hash) = 32),
    at        timestamptz NOT NULL,
    leaf_hash bytea NOT NULL CHECK (length(leaf_hash) = 32),
    PRIMARY KEY (tenant_id, seq),
    FOREIGN KEY (tenant_id) REFERENCES tenants
);
ALTER TABLE audit_anchors ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit_anchors FORCE ROW LEVEL SECURITY;
CREATE POLICY audit_anchors_of_this_tenant ON audit_anchors USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);
"""

# What others say of a published checkpoint: the service's own and public, as the log is.
WITNESSED = """
CREATE TABLE checkpoint_timestamps (
    generation bigint NOT NULL,
    size       bigint NOT NULL,
    response   bytea NOT NULL,
    tsa_chain  text NOT NULL,
    gen_time   timestamptz NOT NULL,
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
    -- Of an algorithm that is not checked here: unknown.
    cosigned_at timestamptz,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (generation, size, name, key_hash),
    FOREIGN KEY (generation, size) REFERENCES checkpoints
);
-- How far a witness has come.
CREATE INDEX checkpoint_cosignatures_witness
    ON checkpoint_cosignatures (generation, name, key_hash, size);
"""

# What keeps heads or checkpoints from being anchored, one row a part for as long as it does; an
# alarm is a witness that has seen another log of our name.
TROUBLES = """
CREATE TABLE anchoring_troubles (
    part   text PRIMARY KEY,
    since  timestamptz NOT NULL,
    detail text NOT NULL,
    alarm  boolean NOT NULL
);
"""


def upgrade() -> None:
    """Create what anchors need."""
    for statements in (SALTS, ANCHORS, WITNESSED, TROUBLES):
        op.execute(statements)
