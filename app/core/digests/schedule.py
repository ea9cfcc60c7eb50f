"""The digest schedule: due tenants, the row that claims a digest, and changes of the address.

A tenant with an address is due when its oldest waiting finding has settled, and a day has passed
since a mail may have been accepted (`KEEPS_BACK`) or one was refused (`REFUSED_LATELY`). Of
concurrent claims one succeeds.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import UNSUBSCRIBER
from app.core.digests.digest_mail import KEEPS_BACK, DigestSending
from app.core.digests.letters import Subscription
from app.core.digests.sending import AT_ONCE, TIMES
from app.database import cursor
from app.models import Job

# Digests of the tenant `t` whose content was refused: the server is not asked each minute. One that
# is dated in the future was written before the clock was set back.
REFUSED_LATELY = """
d.tenant_id = t.id AND d.series = t.digest_series AND d.status = 'content_refused'
   AND d.claimed_at BETWEEN clock_timestamp() - interval '24 hours'
                        AND clock_timestamp() + interval '1 minute'
"""

# The tenant's digest that may be lost, or was refused, and that no other has repeated.
LOST = """
SELECT d.id FROM digests AS d
 WHERE d.tenant_id = t.id AND d.series = t.digest_series
   AND d.status IN ('uncertain', 'content_refused')
   AND NOT EXISTS (SELECT FROM digests AS r WHERE r.tenant_id = t.id AND r.repeats = d.id)
"""
# A subquery evaluates the clock once, so an index finds the later rows. The findings of a mail that
# may be lost are listed once more. Rows dated in the future were written before the clock was set
# back: they delay nothing.
_DUE = f"""
  FROM tenants AS t
 WHERE t.digest_series IS NOT NULL AND t.suspended_at IS NULL
   AND NOT EXISTS (SELECT FROM digests AS d
                    WHERE d.tenant_id = t.id AND d.status IN ('pending', 'sending'))
   AND NOT EXISTS (SELECT FROM digests AS d WHERE d.tenant_id = t.id AND {KEEPS_BACK})
   AND NOT EXISTS (SELECT FROM digests AS d WHERE {REFUSED_LATELY})
   AND (EXISTS ({LOST})
        OR NOT coalesce((SELECT f.created_at BETWEEN clock_timestamp() - %(settle)s
                                                 AND clock_timestamp() + %(settle)s
                           FROM findings AS f
                          WHERE f.tenant_id = t.id AND f.digest_id = t.digest_series
                          ORDER BY f.id LIMIT 1), true))
"""
# In random order: a tenant that cannot be claimed blocks no other.
_TENANTS = f"SELECT t.id {_DUE} ORDER BY random() LIMIT %(most)s"
_CLAIM = f"""
INSERT INTO digests (tenant_id, id, series, through, repeats)
SELECT t.id, %(id)s, t.digest_series,
       (SELECT f.id FROM findings AS f
         WHERE f.tenant_id = t.id AND f.digest_id = t.digest_series ORDER BY f.id DESC LIMIT 1),
       ({LOST})
  {_DUE} AND t.id = %(tenant)s
"""
# Statements after it see what earlier holders of the row lock have committed.
_LOCK = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED"

# The clock was set back: the true time of these mails is unknown, but not later than now.
_SET_BACK = """
UPDATE digests SET data_at = clock_timestamp(),
       sent_at = CASE WHEN sent_at IS NOT NULL THEN clock_timestamp() END
 WHERE data_at > (SELECT clock_timestamp() + interval '1 minute')
"""


def due_tenants(session: Session, settle: timedelta) -> Sequence[UUID]:
    """Return up to 1,000 tenants that are due a digest, in a session that sees all tenants."""
    wanted = {"settle": settle, "most": AT_ONCE, **TIMES}
    return cursor(session, scalar_row).execute(_TENANTS, wanted).fetchall()


def claim(session: Session, tenant_id: UUID, settle: timedelta) -> Job | None:
    """Create a due tenant's digest and the job that sends it.

    None when the tenant is no longer due, or its row is locked: the next tick tries again.
    """
    cur = cursor(session)
    if cur.execute(_LOCK, (tenant_id,)).fetchone() is None:
        return None
    digest_id = ids.new()
    wanted = {"id": digest_id, "tenant": tenant_id, "settle": settle, **TIMES}
    if cur.execute(_CLAIM, wanted).rowcount == 0:
        return None
    return DigestSending.enqueue(session, tenant_id, digest_id)


def follow_the_clock(session: Session) -> None:
    """Set the times of mails that are dated in the future to now.

    So a clock that was wrong for a while delays no digest for longer than a day.
    """
    cursor(session).execute(_SET_BACK)


_CLEAR = """
UPDATE tenants SET notification_email = NULL
 WHERE id = %s AND address_nonce = %s AND notification_email IS NOT NULL
"""
_CANCEL = """
UPDATE digests SET status = 'cancelled', error = 'The address was cleared.'
 WHERE tenant_id = %s AND status = 'pending'
"""


def follow(session: Session, tenant_id: UUID, address: str | None) -> None:
    """Apply the tenant's new address to open digests, in the transaction that sets it.

    Clearing it cancels pending digests; a mail in flight may still arrive. A change makes a digest
    due at once that waits because the server refused the previous address.
    """
    if address is None:
        cursor(session).execute(_CANCEL, (tenant_id,))
    DigestSending.hurry(session, tenant_id)


def clear(session: Session, subscription: Subscription, request_id: str) -> bool:
    """Clear a tenant's address if it is still the subscription's; say whether it was.

    The audit entry's actor is the holder of a mail's link: the person is unknown.
    """
    if cursor(session).execute(_CLEAR, subscription).rowcount == 0:
        return False
    tenant_id = subscription.tenant_id
    follow(session, tenant_id, None)
    chain.append(
        session,
        tenant_id,
        UNSUBSCRIBER,
        "digest.unsubscribe",
        target=("tenant", ids.text("ten", tenant_id)),
        details={"notification_email": {"change": "cleared"}},
        request_id=request_id,
    )
    return True
