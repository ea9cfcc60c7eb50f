"""The digest schedule: which tenants are due one, and the row that claims it.

A tenant is due when an address is set, its oldest waiting finding has settled, and 24 hours have
passed since a mail may last have been accepted (`KEEPS_BACK`). Due is computed from the rows each
time; of concurrent claims one succeeds.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.jobs import job_queue
from app.core.jobs.steps import Name
from app.database import cursor
from app.lib.mail.mailer import DATA_SECONDS
from app.models import Job

KIND = "digest"
# The cursor of a job that found others sending.
BUSY = "busy"
AT_ONCE = 1000
# A mail is accepted, if at all, before `sent_at`; one whose answer was lost left within
# `DATA_SECONDS` of its `data_at`, and the server may then think about it for ten minutes (RFC 5321
# section 4.5.3.2.6) before it takes it.
_UNHEARD = timedelta(seconds=DATA_SECONDS, minutes=10)
ACCEPTED_BY = "greatest(data_at, coalesce(sent_at, data_at + %(unheard)s))"
# The digests that keep others of their tenant back; the first half is for the index.
KEEPS_BACK = f"""
data_at > (SELECT clock_timestamp() - interval '24 hours' - %(unheard)s)
   AND {ACCEPTED_BY} > clock_timestamp() - interval '24 hours'
"""
TIMES = {"unheard": _UNHEARD}

# Asked in a query of its own, the clock says one moment, and an index finds what is later. A mail
# that may be lost has its findings listed once more. What is dated later than now was written
# before the clock was set back: it waits for nothing.
_DUE = f"""
  FROM tenants AS t
 WHERE t.digest_series IS NOT NULL AND t.suspended_at IS NULL
   AND NOT EXISTS (SELECT FROM digests AS d
                    WHERE d.tenant_id = t.id AND d.status IN ('pending', 'sending'))
   AND NOT EXISTS (SELECT FROM digests AS d WHERE d.tenant_id = t.id AND {KEEPS_BACK})
   AND (EXISTS (SELECT FROM digests AS d
                 WHERE d.tenant_id = t.id AND d.series = t.digest_series AND d.status = 'uncertain'
                   AND NOT EXISTS (SELECT FROM digests AS r
                                    WHERE r.tenant_id = t.id AND r.repeats = d.id))
        OR NOT coalesce((SELECT f.created_at BETWEEN clock_timestamp() - %(settle)s
                                                 AND clock_timestamp() + %(settle)s
                           FROM findings AS f
                          WHERE f.tenant_id = t.id AND f.digest_id = t.digest_series
                          ORDER BY f.id LIMIT 1), true))
"""
# At random: a tenant that cannot be claimed blocks no other.
_TENANTS = f"SELECT t.id {_DUE} ORDER BY random() LIMIT %(most)s"
_CLAIM = f"""
INSERT INTO digests (tenant_id, id, series, through, repeats)
SELECT t.id, %(id)s, t.digest_series,
       (SELECT f.id FROM findings AS f
         WHERE f.tenant_id = t.id AND f.digest_id = t.digest_series ORDER BY f.id DESC LIMIT 1),
       (SELECT d.id FROM digests AS d
         WHERE d.tenant_id = t.id AND d.series = t.digest_series AND d.status = 'uncertain'
           AND NOT EXISTS (SELECT FROM digests AS r
                            WHERE r.tenant_id = t.id AND r.repeats = d.id))
  {_DUE} AND t.id = %(tenant)s
"""
# Every statement after it sees what those who had the row before have committed.
_LOCK = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED"

# The clock was set back: when that was sent is unknown, but not later than now.
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


# Those whose time has come are rung; of the others, the one whose time comes next. One that waits
# since it failed, or its worker died, is no longer `running`: it keeps its wait.
_NEXT = """
UPDATE jobs SET run_at = clock_timestamp(), ring_at = clock_timestamp()
 WHERE (tenant_id, id) = (
    SELECT tenant_id, id FROM jobs
     WHERE finished_at IS NULL AND locked_until IS NULL AND status = 'running'
       AND kind = %s AND cursor = %s
       AND run_at > (SELECT clock_timestamp())
     ORDER BY run_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
RETURNING tenant_id, id
"""


def due_tenants(session: Session, settle: timedelta) -> Sequence[UUID]:
    """Return tenants who are due a digest, in a session that sees them all; at most a thousand."""
    wanted = {"settle": settle, "most": AT_ONCE, **TIMES}
    return [row[0] for row in cursor(session).execute(_TENANTS, wanted)]


def claim(session: Session, tenant_id: UUID, settle: timedelta) -> Job | None:
    """Make a due tenant's digest and the job that sends it.

    None when it is not due any more, or its row is locked: the next tick tries again.
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
    """Make the job of a digest, unless it has one."""
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


def next_waiting(session: Session) -> Name | None:
    """Make one of the digests that found others sending due now; return its job.

    In a session that sees all tenants. Two who ask at once get two.
    """
    row = cursor(session).execute(_NEXT, (KIND, BUSY)).fetchone()
    return None if row is None else (row[0], row[1])


def follow_the_clock(session: Session) -> None:
    """Count from now what was sent as of a moment that is too far ahead.

    So a clock that was wrong for a while delays no digest for longer than a day.
    """
    cursor(session).execute(_SET_BACK)
