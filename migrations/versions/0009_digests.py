"""Digests: which findings wait for the next mail, and what became of each mail."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# A series lasts from the setting of an address, by whatever statement of whatever version, to its
# clearing. A finding is born into its tenant's series, so what was found before is in none, and
# what was left over when one ended is never found again.
SERIES = """
ALTER TABLE tenants ADD COLUMN digest_series uuid;

CREATE FUNCTION keep_digest_series() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.notification_email IS NULL THEN
        NEW.digest_series := NULL;
    ELSIF NEW.digest_series IS NULL THEN
        NEW.digest_series := gen_random_uuid();
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER keep_digest_series BEFORE INSERT OR UPDATE OF notification_email ON tenants
    FOR EACH ROW EXECUTE FUNCTION keep_digest_series();
"""

DIGESTS = """
CREATE TABLE digests (
    tenant_id  uuid NOT NULL REFERENCES tenants,
    id         uuid NOT NULL,
    series     uuid NOT NULL,
    through    uuid,
    repeats    uuid,
    status     text NOT NULL DEFAULT 'pending' CHECK (status IN
               ('pending', 'sending', 'sent', 'uncertain', 'cancelled')),
    findings   bigint,
    refusals   bigint NOT NULL DEFAULT 0,
    error      text,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data_at    timestamptz,
    sent_at    timestamptz,
    PRIMARY KEY (tenant_id, id),
    CHECK ((data_at IS NOT NULL) = (status IN ('sending', 'sent', 'uncertain'))),
    CHECK ((sent_at IS NOT NULL) = (status = 'sent'))
);
-- The claim: of several who find a tenant due, one makes this row.
CREATE UNIQUE INDEX digests_open ON digests (tenant_id) WHERE status IN ('pending', 'sending');
CREATE UNIQUE INDEX digests_repeats ON digests (tenant_id, repeats) WHERE repeats IS NOT NULL;
CREATE INDEX digests_uncertain ON digests (tenant_id, series) WHERE status = 'uncertain';
CREATE INDEX digests_last ON digests (tenant_id, data_at) WHERE data_at IS NOT NULL;
CREATE INDEX digests_data_at ON digests (data_at) WHERE data_at IS NOT NULL;

ALTER TABLE digests ENABLE ROW LEVEL SECURITY;
ALTER TABLE digests FORCE ROW LEVEL SECURITY;
CREATE POLICY digests_of_this_tenant ON digests USING (
    tenant_id = (SELECT nullif(current_setting('app.tenant_id', true), '')::uuid)
    OR (SELECT current_setting('app.every_tenant', true) = 'on')
);

-- The series in which a finding waits, then the digest that lists it. A tenant without an address
-- has neither, and no entry in the index, which is built later.
ALTER TABLE findings ADD COLUMN digest_id uuid;
"""

# Two tables that every request reads are locked for a moment. Who waits for that has everybody wait
# behind it, so it gives up soon, and `migrate` can be run again.
PATIENCE = "SET LOCAL lock_timeout = '2s'"


def upgrade() -> None:
    """Create what digests need; nothing enters a series before a later migration."""
    for statements in (PATIENCE, SERIES, DIGESTS):
        op.execute(statements)
