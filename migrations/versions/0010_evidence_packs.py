"""Evidence packs: built by a job, kept sealed in parts, and gone with their bundle."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# A pack goes with its bundle, whoever deletes that: also a process of the release before, which
# knows of no packs. The foreign key is what makes it so.
PACKS = """
CREATE TABLE evidence_packs (
    tenant_id       uuid NOT NULL,
    id              uuid NOT NULL,
    record_id       uuid NOT NULL,
    sha256          bytea CHECK (length(sha256) = 32),
    size            bigint NOT NULL DEFAULT 0,
    generation      bigint NOT NULL,
    checkpoint_size bigint NOT NULL,
    evidence_rank   bigint NOT NULL,
    key_id          text NOT NULL REFERENCES signing_keys,
    recipe          text NOT NULL,
    began_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    built_at        timestamptz,
    superseded_at   timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, record_id) REFERENCES bundles ON DELETE CASCADE,
    CHECK ((built_at IS NULL) = (sha256 IS NULL)),
    CHECK (superseded_at IS NULL OR built_at IS NOT NULL)
);
CREATE INDEX evidence_packs_record ON evidence_packs (tenant_id, record_id);
CREATE UNIQUE INDEX evidence_packs_stored ON evidence_packs (tenant_id, record_id)
    WHERE built_at IS NOT NULL AND superseded_at IS NULL;
CREATE INDEX evidence_packs_left_over ON evidence_packs (tenant_id, id)
    WHERE built_at IS NULL OR superseded_at IS NOT NULL;

CREATE TABLE evidence_pack_parts (
    tenant_id uuid NOT NULL,
    pack_id   uuid NOT NULL,
    number    bigint NOT NULL,
    bytes     bytea NOT NULL,
    PRIMARY KEY (tenant_id, pack_id, number),
    FOREIGN KEY (tenant_id, pack_id) REFERENCES evidence_packs ON DELETE CASCADE
);
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

-- Whether the job of a record's pack gave up is asked by each request for it.
CREATE INDEX jobs_dead_by_key ON jobs (tenant_id, kind, dedupe_key, id)
    WHERE status = 'dead' AND dedupe_key IS NOT NULL;
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
    """Create what packs need."""
    op.execute(PACKS)
    for table in ("evidence_packs", "evidence_pack_parts", "evidence_exports"):
        op.execute(WALL.format(table=table))
