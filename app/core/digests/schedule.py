"""The digest schedule: due tenants, the claim of a digest, what became of it, and the next.

A tenant with an address is due when its oldest waiting finding has settled, and a day has passed
since a mail may have been accepted (`KEEPS_BACK`) or its content was refused. Of concurrent claims
one succeeds.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, namedtuple_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import UNSUBSCRIBER
from app.core.digests.digest_mail import KEEPS_BACK, DigestSending
from app.core.digests.letters import Subscription
from app.core.digests.sending import ACCEPTED_BY, AT_ONCE, TIMES
from app.database import cursor
from app.lib.mail.mailer import Refusal
from app.models import Digest, Job
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


# The tenant's digest that may be lost, or was refused, and that no other has repeated.
_LOST = """
SELECT d.id FROM digests AS d
 WHERE d.tenant_id = t.id AND d.series = t.digest_series
   AND d.status IN ('uncertain', 'content_refused')
   AND NOT EXISTS (SELECT FROM digests AS r WHERE r.tenant_id = t.id AND r.repeats = d.id)
"""
# Of a tenant `t`: its open digest, the end of the day after its last mail, and when what waits has
# settled (null: nothing waits). The findings of a mail that may be lost are listed once more. Rows
# dated in the future were written before the clock was set back: they delay nothing.
_TIMES = f"""
SELECT (SELECT d.id FROM digests AS d
         WHERE d.tenant_id = t.id AND d.status IN ('pending', 'sending')) AS open,
       greatest(
           (SELECT max({ACCEPTED_BY}) FROM digests AS d WHERE d.tenant_id = t.id AND {KEEPS_BACK}),
           (SELECT max(d.claimed_at) FROM digests AS d
             WHERE d.tenant_id = t.id AND d.series = t.digest_series
               AND d.status = 'content_refused'
               AND d.claimed_at BETWEEN clock_timestamp() - interval '24 hours'
                                    AND clock_timestamp() + interval '1 minute')
       ) + interval '24 hours' AS not_before,
       CASE WHEN EXISTS ({_LOST}) THEN '-infinity'
            ELSE (SELECT CASE WHEN f.created_at > clock_timestamp() + %(settle)s THEN '-infinity'
                              ELSE f.created_at + %(settle)s END
                    FROM findings AS f
                   WHERE f.tenant_id = t.id AND f.digest_id = t.digest_series
                   ORDER BY f.id LIMIT 1) END AS settled
"""
_DUE = f"""
  FROM tenants AS t CROSS JOIN LATERAL ({_TIMES}) AS x
 WHERE t.digest_series IS NOT NULL AND t.suspended_at IS NULL AND x.open IS NULL
   AND x.settled <= clock_timestamp() AND (x.not_before <= clock_timestamp()) IS NOT FALSE
"""
# In random order: a tenant that cannot be claimed blocks no other.
_TENANTS = f"SELECT t.id {_DUE} ORDER BY random() LIMIT %(most)s"
_CLAIM = f"""
INSERT INTO digests (tenant_id, id, series, through, repeats)
SELECT t.id, %(id)s, t.digest_series,
       (SELECT f.id FROM findings AS f
         WHERE f.tenant_id = t.id AND f.digest_id = t.digest_series ORDER BY f.id DESC LIMIT 1),
       ({_LOST})
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


_NEXT = f"""
SELECT t.notification_email AS to, x.open AS digest_id, x.not_before,
       CASE WHEN x.open IS NOT NULL OR x.settled IS NOT NULL
            THEN greatest(clock_timestamp(), CASE WHEN x.open IS NOT NULL THEN j.run_at
                                                  ELSE greatest(x.settled, x.not_before) END)
       END AS due_at
  FROM tenants AS t CROSS JOIN LATERAL ({_TIMES}) AS x
  LEFT JOIN jobs AS j ON j.tenant_id = t.id AND j.kind = %(kind)s AND j.finished_at IS NULL
       AND j.dedupe_key = x.open::text
 WHERE t.id = %(tenant)s AND t.notification_email IS NOT NULL
"""


def next_digest(session: Session, tenant_id: UUID, settle: timedelta) -> dict[str, Any] | None:
    """Return a tenant's next digest as JSON: the open one, or the next; None without an address."""
    wanted = {"tenant": tenant_id, "settle": settle, "kind": DigestSending.kind, **TIMES}
    found = cursor(session, namedtuple_row).execute(_NEXT, wanted).fetchone()
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
