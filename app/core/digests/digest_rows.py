"""The digest's row: its address, the findings it takes, and what digests stand refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app.core.digests import schedule
from app.database import cursor
from app.lib.mail.mailer import Refusal
from app.models import Digest

_OPEN = "SELECT count(*) FROM digests WHERE status IN ('pending', 'sending')"
# A change of the address takes the same lock.
_LOCK_TENANT = """
SELECT notification_email, digest_series, address_nonce FROM tenants
 WHERE id = %s FOR NO KEY UPDATE
"""
_BEGIN = f"""
UPDATE digests SET status = 'sending', data_at = clock_timestamp()
 WHERE tenant_id = %(tenant)s AND id = %(id)s AND status = 'pending'
   AND NOT EXISTS (SELECT FROM digests
                    WHERE tenant_id = %(tenant)s AND id <> %(id)s AND {schedule.KEEPS_BACK})
"""


def lock_address(session: Session, digest: Digest) -> tuple[str | None, UUID | None, UUID | None]:
    """Return the tenant's address, series and nonce, locked until the transaction ends."""
    row = cursor(session).execute(_LOCK_TENANT, (digest.tenant_id,)).fetchone()
    assert row is not None  # noqa: S101  # a digest refers to its tenant
    return row[0], row[1], row[2]


def begin(session: Session, digest: Digest) -> bool:
    """Set a digest to `sending`; False when it has ended, or another mail's day is not over."""
    wanted = {"tenant": digest.tenant_id, "id": digest.id, **schedule.TIMES}
    return cursor(session).execute(_BEGIN.encode(), wanted).rowcount == 1


def open_ones(session: Session) -> int:
    """Return the number of open digests, in a session that sees all tenants."""
    return cursor(session, scalar_row).execute(_OPEN).fetchone() or 0


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
    is_taking = after is not None and after.startswith(_TAKING)
    wanted = {
        "tenant": digest.tenant_id,
        "id": digest.id,
        "series": digest.series,
        "through": digest.through,
        "last": UUID(after.removeprefix(_TAKING)) if after and is_taking else UUID(int=0),
        "most": TAKEN_AT_ONCE,
    }
    taken = cur.execute(_TAKE, wanted).fetchone()
    if taken is not None and taken[0] == TAKEN_AT_ONCE:
        return f"{_TAKING}{taken[1]}"
    cur.execute(_FIX_COUNT, (digest.tenant_id, digest.id))
    session.refresh(digest)
    return TAKEN


# As long as the alert of late digests waits.
_LATE = timedelta(hours=2)


@dataclass(frozen=True)
class Trouble:
    """How many digests stand for one reason: a `Refusal`, or `away` for a server that is not taken.

    `since` is the claim of the oldest, `error` the newest one's sentence. It quotes no server:
    anyone may standing_troubles it.
    """

    what: str
    digests: int
    since: datetime
    error: str


# Digests of suspended tenants wait on purpose. Content that was refused stands until another digest
# repeats it. Each half has a small index of its own.
_READ = """
WITH standing AS (
    SELECT coalesce(d.refusal, 'away') AS what, d.id, d.claimed_at, d.error
      FROM digests AS d JOIN tenants AS t ON t.id = d.tenant_id AND t.suspended_at IS NULL
     WHERE d.status IN ('pending', 'sending') AND d.error IS NOT NULL
       AND d.refusal IS DISTINCT FROM 'content'
       AND (d.refusal IS NOT NULL OR d.claimed_at < clock_timestamp() - %(late)s)
    UNION ALL
    SELECT 'content', d.id, d.claimed_at, d.error
      FROM digests AS d JOIN tenants AS t ON t.id = d.tenant_id AND t.suspended_at IS NULL
       AND t.digest_series = d.series
     WHERE d.status = 'content_refused'
       AND NOT EXISTS (SELECT FROM digests AS r
                        WHERE r.tenant_id = d.tenant_id AND r.repeats = d.id)
)
SELECT what, count(*) AS digests, min(claimed_at) AS since,
       coalesce((array_agg(error ORDER BY id DESC))[1], '') AS error
  FROM standing GROUP BY what ORDER BY what
"""


def standing_troubles(session: Session) -> Sequence[Trouble]:
    """Return the troubles, in a session that sees all tenants."""
    return cursor(session, class_row(Trouble)).execute(_READ, {"late": _LATE}).fetchall()


def counted(troubles: Sequence[Trouble]) -> dict[str, int]:
    """Return how many digests stand refused, by what is refused."""
    found = {each.what: each.digests for each in troubles}
    return {str(refusal): found.get(refusal, 0) for refusal in Refusal}
