"""What keeps digests from going out: refusals that stand, and a mail server that is long away."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app.database import cursor
from app.lib.mail.mailer import Refusal

# As long as the alert of late digests waits.
_LATE = timedelta(hours=2)


@dataclass(frozen=True)
class Trouble:
    """How many digests stand for one reason: a `Refusal`, or `away` for a server that is not taken.

    `since` is the claim of the oldest, `error` the newest one's sentence. It quotes no server:
    anyone may read it.
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


def read(session: Session) -> Sequence[Trouble]:
    """Return the troubles, in a session that sees all tenants."""
    return cursor(session, class_row(Trouble)).execute(_READ, {"late": _LATE}).fetchall()


def counted(troubles: Sequence[Trouble]) -> dict[str, int]:
    """Return how many digests stand refused, by what is refused."""
    found = {each.what: each.digests for each in troubles}
    return {str(refusal): found.get(refusal, 0) for refusal in Refusal}
