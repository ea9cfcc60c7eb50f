"""The digest schedule: tenants that are due a digest, and the row that claims it.

A tenant with an address is due when its oldest waiting finding has settled, and a day has passed
since a mail may have been accepted (`KEEPS_BACK`) or one was refused (`REFUSED_LATELY`). Due is
computed from the rows; of concurrent claims one succeeds.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.jobs import job_queue
from app.database import cursor
from app.lib.mail.mailer import DATA_SECONDS
from app.models import Job

KIND = "digest"
AT_ONCE = 1000
# A mail is accepted, if at all, before `sent_at`. A mail whose answer was lost left within
# `DATA_SECONDS` of its `data_at`, and the server may take ten more minutes to accept it (RFC 5321
# section 4.5.3.2.6).
_UNHEARD = timedelta(seconds=DATA_SECONDS, minutes=10)
ACCEPTED_BY = "greatest(data_at, coalesce(sent_at, data_at + %(unheard)s))"
# Digests that delay others of their tenant; the first condition is for the index.
KEEPS_BACK = f"""
data_at > (SELECT clock_timestamp() - interval '24 hours' - %(unheard)s)
   AND {ACCEPTED_BY} > clock_timestamp() - interval '24 hours'
"""
TIMES = {"unheard": _UNHEARD}
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

_FORGOTTEN = """
SELECT d.tenant_id, d.id FROM digests AS d
 WHERE d.status IN ('pending', 'sending')
   AND NOT EXISTS (SELECT FROM jobs AS j
                    WHERE j.tenant_id = d.tenant_id AND j.kind = %s AND j.dedupe_key = d.id::text
                      AND j.finished_at IS NULL)
 ORDER BY random() LIMIT %s
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
    return enqueue(session, tenant_id, digest_id)


def enqueue(session: Session, tenant_id: UUID, digest_id: UUID) -> Job:
    """Enqueue the job of a digest, unless it has an open one."""
    return job_queue.enqueue(
        session,
        tenant_id,
        kind=KIND,
        args={"digest_id": ids.text("dig", digest_id)},
        dedupe_key=str(digest_id),
    )


def forgotten(session: Session) -> Sequence[tuple[UUID, UUID]]:
    """Return open digests whose job has died, as (tenant id, digest id), of all tenants."""
    found = cursor(session).execute(_FORGOTTEN, (KIND, AT_ONCE))
    return [(row[0], row[1]) for row in found]


def follow_the_clock(session: Session) -> None:
    """Set the times of mails that are dated in the future to now.

    So a clock that was wrong for a while delays no digest for longer than a day.
    """
    cursor(session).execute(_SET_BACK)
