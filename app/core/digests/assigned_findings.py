"""Assigns the waiting findings of a series to a digest, in batches."""

from uuid import UUID

from sqlalchemy.orm import Session

from app.database import cursor
from app.models import Digest

# Findings assigned in one transaction, which takes a fraction of a second.
TAKEN_AT_ONCE = 2_000

_TAKE = """
WITH next AS MATERIALIZED (
    SELECT id FROM findings
     WHERE tenant_id = %(tenant)s AND digest_id = %(series)s
       AND id > %(last)s AND id <= %(through)s
     ORDER BY id LIMIT %(most)s
), taken AS (
    UPDATE findings SET digest_id = %(id)s
     WHERE tenant_id = %(tenant)s AND id = ANY(ARRAY(SELECT id FROM next))
)
SELECT count(*), (SELECT id FROM next ORDER BY id DESC LIMIT 1) FROM next
"""
# The cursor of a job whose digest has all its findings.
TAKEN = "taken"
_TAKING = "taking:"
_NOTHING_YET = UUID(int=0)
_FIX_COUNT = """
UPDATE digests AS d
   SET findings = (SELECT count(*) FROM findings AS f
                    WHERE f.tenant_id = d.tenant_id AND f.digest_id = d.id)
 WHERE d.tenant_id = %s AND d.id = %s
"""


def take(session: Session, digest: Digest, after: str | None) -> str:
    """Assign the next findings to this digest; once there are no more, store their number.

    Returns the job's next cursor; `after` is its current one, so that the scan skips the dead index
    entries of earlier batches. `through` bounds the scan. A finding that is committed after the
    scan has passed its id stays in the series, for the next digest.
    """
    cur = cursor(session)
    wanted = {
        "tenant": digest.tenant_id,
        "id": digest.id,
        "series": digest.series,
        "through": digest.through,
        "last": _last_taken(after),
        "most": TAKEN_AT_ONCE,
    }
    taken = cur.execute(_TAKE, wanted).fetchone()
    if taken is not None and taken[0] == TAKEN_AT_ONCE:
        return f"{_TAKING}{taken[1]}"
    cur.execute(_FIX_COUNT, (digest.tenant_id, digest.id))
    session.refresh(digest)
    return TAKEN


def _last_taken(cursor_of_job: str | None) -> UUID:
    if cursor_of_job is None or not cursor_of_job.startswith(_TAKING):
        return _NOTHING_YET
    return UUID(cursor_of_job.removeprefix(_TAKING))
