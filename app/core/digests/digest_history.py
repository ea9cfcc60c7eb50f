"""What became of digests: a tenant's, its next one, and those of all tenants that stand."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, namedtuple_row, scalar_row
from sqlalchemy.orm import Session

from app.core.digests import schedule
from app.core.digests.digest_mail import KEEPS_BACK, DigestSending
from app.core.digests.sending import ACCEPTED_BY, TIMES
from app.database import cursor
from app.lib.mail.mailer import Refusal
from app.models import Digest
from app.schemas import fields
from app.schemas.schema import AnswerSchema


class Status(enum.StrEnum):
    """The status of a digest."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    UNCERTAIN = "uncertain"
    CONTENT_REFUSED = "content_refused"
    RECIPIENT_REFUSED = "recipient_refused"
    CANCELLED = "cancelled"


class DigestSchema(AnswerSchema):
    """One digest, without the address."""

    id = fields.Id("dig")
    status = fields.Choice(
        Status,
        description="`uncertain`: the mail server's answer was lost, and the next digest "
        "lists the same again. `content_refused`: the mail server refused it for good, also "
        "`brief`; the next digest, a day later, lists the same again. `recipient_refused`: the "
        "mail server refuses the address for good; it is tried once a day, and at once when the "
        "address is changed. `cancelled`: the address was cleared before it was sent.",
    )
    findings = fields.Count(
        allow_none=True,
        description="How many new findings it lists; null until they are selected. "
        "`GET /v1/findings?digest_id=` lists them.",
    )
    repeats = fields.Id(
        "dig", allow_none=True, description="The `uncertain` digest whose findings it repeats."
    )
    refusals = fields.Count(description="How often the mail server did not answer or refused it.")
    error = fields.Text(1000, allow_none=True, description="What the last attempt failed of.")
    said = fields.Text(
        1000,
        allow_none=True,
        description="The mail server's own words with `error`; the address in them is left out.",
    )
    brief = fields.Boolean(
        description="It has numbers, severities and links only, because the mail server refused it "
        "with the findings' titles."
    )
    claimed_at = fields.Time()
    data_at = fields.Time(
        allow_none=True, description="From then on the mail server may have accepted the mail."
    )
    sent_at = fields.Time(allow_none=True)


def represent(digest: Digest) -> dict[str, Any]:
    """Return a digest's JSON representation in the list, without its address."""
    refused = digest.status == "pending" and digest.refusal == Refusal.RECIPIENT
    status = Status.RECIPIENT_REFUSED if refused else digest.status
    return DigestSchema.of(digest, status=status)


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


_READ = f"""
WITH present AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), asked AS (
    SELECT t.notification_email, d.id AS open, j.run_at,
           greatest(
               (SELECT max({ACCEPTED_BY}) FROM digests
                 WHERE tenant_id = t.id AND {KEEPS_BACK}),
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


def next_digest(session: Session, tenant_id: UUID, settle: timedelta) -> dict[str, Any] | None:
    """Return a tenant's next digest as JSON: the open one, or the next; None without an address."""
    wanted = {"tenant": tenant_id, "settle": settle, "kind": DigestSending.kind, **TIMES}
    found = cursor(session, namedtuple_row).execute(_READ.encode(), wanted).fetchone()
    return None if found is None else NextSchema.of(found)


_OPEN = "SELECT count(*) FROM digests WHERE status IN ('pending', 'sending')"
# As long as the alert of late digests waits.
_LATE = timedelta(hours=2)


@dataclass(frozen=True)
class Standing:
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
_STANDING = """
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


def standing(session: Session) -> Sequence[Standing]:
    """Return why digests stand, in a session that sees all tenants."""
    return cursor(session, class_row(Standing)).execute(_STANDING, {"late": _LATE}).fetchall()


def counted(found: Sequence[Standing]) -> dict[str, int]:
    """Return how many digests stand refused, by what is refused."""
    counts = {each.what: each.digests for each in found}
    return {str(refusal): counts.get(refusal, 0) for refusal in Refusal}


def open_ones(session: Session) -> int:
    """Return the number of open digests, in a session that sees all tenants."""
    return cursor(session, scalar_row).execute(_OPEN).fetchone() or 0
