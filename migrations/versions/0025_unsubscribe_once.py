"""Each setting of a digest's address gets a nonce, which the links in its mails know."""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

# Null until the address is next set: the links in mails that were sent before go on working till
# then. The series outlives a change of the address, so it cannot tell two settings apart.
NONCE = """
SET LOCAL lock_timeout = '2s';
ALTER TABLE tenants ADD COLUMN IF NOT EXISTS address_nonce uuid;

CREATE OR REPLACE FUNCTION keep_digest_series() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' OR NEW.notification_email IS DISTINCT FROM OLD.notification_email THEN
        NEW.address_nonce := gen_random_uuid();
    END IF;
    IF NEW.notification_email IS NULL THEN
        NEW.digest_series := NULL;
    ELSIF NEW.digest_series IS NULL THEN
        NEW.digest_series := gen_random_uuid();
    END IF;
    RETURN NEW;
END $$;
"""


def upgrade() -> None:
    """Add the column and have the trigger fill it, whichever release sets the address."""
    op.execute(NONCE)
