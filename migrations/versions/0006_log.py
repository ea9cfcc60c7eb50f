"""The transparency log: its generations, tiles and checkpoints, and whose leaves are where."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# The service's own, like its keys: the log is everyone's, names no tenant, and has no wall.
LOG = """
-- The log is one generation, until a restored database makes a successor necessary.
CREATE TABLE log_generations (
    generation  bigint PRIMARY KEY,
    origin      text NOT NULL UNIQUE,
    key_id      text NOT NULL REFERENCES signing_keys,
    predecessor text,
    head_kept   boolean NOT NULL DEFAULT false,
    trouble     text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Here and in the leaves no foreign key: it would cost a batch more than its hashes do.
CREATE TABLE log_tiles (
    generation bigint NOT NULL,
    level      bigint NOT NULL,
    number     bigint NOT NULL,
    data       bytea NOT NULL,
    PRIMARY KEY (generation, level, number)
);

-- Without a note it is prepared: not signed, and seen by nobody.
CREATE TABLE checkpoints (
    generation   bigint NOT NULL REFERENCES log_generations,
    size         bigint NOT NULL CHECK (size >= 0),
    root         bytea NOT NULL CHECK (length(root) = 32),
    note         bytea,
    prepared_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz,
    PRIMARY KEY (generation, size),
    CHECK ((note IS NULL) = (published_at IS NULL))
);
CREATE UNIQUE INDEX checkpoints_prepared ON checkpoints (generation) WHERE note IS NULL;
"""

# A leaf of an older generation waits as well: for its place in the newest one.
LEAVES = """
ALTER TABLE log_leaves
    ADD COLUMN generation bigint,
    ADD CHECK ((generation IS NULL) = (leaf_index IS NULL));
DROP INDEX log_leaves_index;
CREATE UNIQUE INDEX log_leaves_index ON log_leaves (generation, leaf_index)
    WHERE leaf_index IS NOT NULL;
-- Every leaf is inserted once and updated once; the index of those that wait stays small.
ALTER TABLE log_leaves SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1
);
"""


def upgrade() -> None:
    """Create what the log needs."""
    op.execute(LOG)
    op.execute(LEAVES)
