"""Digests of a tenant, newest first, and the next one: to whom, and when it is due."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.digests import schedule
from app.database import cursor
from app.lib.mail.mailer import Refusal
from app.models import Digest


def rows(session: Session, tenant_id: UUID, before: UUID | None, limit: int) -> Sequence[Digest]:
    """Return up to `limit` of a tenant's digests, newest first, older than the id `before`."""
    query = select(Digest).where(Digest.tenant_id == tenant_id)
    if before is not None:
        query = query.where(Digest.id < before)
    return session.scalars(query.order_by(Digest.id.desc()).limit(limit)).all()


def represent(digest: Digest) -> dict[str, Any]:
    """Return a digest's JSON representation in the list, without its address."""
    return {
        "id": ids.text("dig", digest.id),
        "status": _status(digest),
        "findings": digest.findings,
        "repeats": None if digest.repeats is None else ids.text("dig", digest.repeats),
        "refusals": digest.refusals,
        "error": digest.error,
        "said": digest.said,
        "brief": digest.brief,
        "claimed_at": rfc3339(digest.claimed_at),
        "data_at": None if digest.data_at is None else rfc3339(digest.data_at),
        "sent_at": None if digest.sent_at is None else rfc3339(digest.sent_at),
    }


def _status(digest: Digest) -> str:
    """Return the status; one that waits because its recipient was refused for good says so."""
    refused = digest.status == "pending" and digest.refusal == Refusal.RECIPIENT
    return "recipient_refused" if refused else digest.status


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


def next_digest(session: Session, tenant_id: UUID, settle: timedelta) -> Upcoming | None:
    """Return a tenant's next digest; None without an address."""
    wanted = {"tenant": tenant_id, "settle": settle, "kind": schedule.KIND, **schedule.TIMES}
    return cursor(session, class_row(Upcoming)).execute(_READ.encode(), wanted).fetchone()


def represent_next(upcoming: Upcoming | None) -> dict[str, Any] | None:
    """Return the next digest's JSON representation."""
    if upcoming is None:
        return None
    return {
        "to": upcoming.to,
        "digest_id": None if upcoming.digest_id is None else ids.text("dig", upcoming.digest_id),
        "due_at": None if upcoming.due_at is None else rfc3339(upcoming.due_at),
        "not_before": None if upcoming.not_before is None else rfc3339(upcoming.not_before),
    }
