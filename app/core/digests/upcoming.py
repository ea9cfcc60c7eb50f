"""The next digest of a tenant: to whom, and when it is due by what is stored now."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import fields
from app.core.digests import schedule
from app.database import cursor
from app.schemas import AnswerSchema


@dataclass(frozen=True)
class Upcoming:
    """The next digest: the open one of `digest_id`, or the one that is made next.

    `due_at` is when it is sent, or tried again: None while no finding waits for it. `not_before` is
    the end of the day after the last mail.
    """

    to: str
    digest_id: UUID | None
    due_at: datetime | None
    not_before: datetime | None


_READ = f"""
WITH present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), asked AS (
    SELECT t.notification_email, d.id AS open, j.run_at,
           greatest(
               (SELECT max({schedule.ACCEPTED_BY}) FROM digests
                 WHERE tenant_id = t.id AND {schedule.KEEPS_BACK}),
               (SELECT max(d.claimed_at) FROM digests AS d WHERE {schedule.REFUSED_LATELY})
           ) + interval '24 hours' AS not_before,
           CASE WHEN EXISTS ({schedule.LOST}) THEN (SELECT now FROM present)
                ELSE (SELECT CASE WHEN f.created_at > (SELECT now FROM present) + %(settle)s
                                  THEN (SELECT now FROM present) ELSE f.created_at + %(settle)s END
                        FROM findings AS f
                       WHERE f.tenant_id = t.id AND f.digest_id = t.digest_series
                       ORDER BY f.id LIMIT 1) END AS settled
      FROM tenants AS t
      LEFT JOIN digests AS d ON d.tenant_id = t.id AND d.status IN ('pending', 'sending')
      LEFT JOIN jobs AS j ON j.tenant_id = t.id AND j.kind = %(kind)s AND j.finished_at IS NULL
                         AND j.dedupe_key = d.id::text
     WHERE t.id = %(tenant)s AND t.notification_email IS NOT NULL
)
SELECT notification_email AS to, open AS digest_id, not_before,
       CASE WHEN open IS NOT NULL THEN greatest(run_at, (SELECT now FROM present))
            WHEN settled IS NOT NULL
                THEN greatest(settled, not_before, (SELECT now FROM present)) END AS due_at
  FROM asked
"""


class NextSchema(AnswerSchema):
    """The next digest of the tenant."""

    to = fields.Text(254, description="The address that it goes to.")
    digest_id = fields.Id(
        "dig", allow_none=True, description="The digest, once it is begun; null before."
    )
    due_at = fields.Time(
        allow_none=True,
        description="When it is sent, or tried again; null while no finding waits for it.",
    )
    not_before = fields.Time(
        allow_none=True, description="The end of the day after the last mail; null when it is over."
    )


def read(session: Session, tenant_id: UUID, settle: timedelta) -> Upcoming | None:
    """Return a tenant's next digest; None without an address."""
    wanted = {"tenant": tenant_id, "settle": settle, "kind": schedule.KIND, **schedule.TIMES}
    return cursor(session, class_row(Upcoming)).execute(_READ.encode(), wanted).fetchone()


def represent(upcoming: Upcoming | None) -> dict[str, Any] | None:
    """Return the next digest's JSON representation."""
    return None if upcoming is None else NextSchema.of(upcoming)
