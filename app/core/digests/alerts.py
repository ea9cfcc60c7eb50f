"""Alerts: who is told of which troubles, the troubles noted, and the mails due for them.

A tick looks for troubles: each is noted once for as long as it stands, in the transaction that
makes the mails for it. A recipient gets one mail in an hour at most, with all that was noted since
the last; whatever keeps a mail back, the next one lists it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import UNSUBSCRIBER, Caller
from app.core.delivery.lanes.lane_health import REFUSES
from app.core.digests import schedule, troubles
from app.core.digests.schedule import Subscription
from app.core.digests.troubles import Kind, Trouble
from app.core.jobs import job_queue
from app.core.wakeups import ring_job
from app.database import cursor, database_now
from app.lib.mail import mailbox
from app.models import AlertMail
from app.schemas import fields
from app.schemas.schema import AnswerSchema

KIND = "alert_mail"
MOST_RECIPIENTS = 10
AT_ONCE = 1000
# A webhook that fails for seconds, while its receiver is deployed, is no news yet.
LASTING = timedelta(minutes=5)


class AlertsSchema(AnswerSchema):
    """Who is told of which troubles."""

    emails = fields.Items(fields.Text(mailbox.MAX_LENGTH), max_items=MOST_RECIPIENTS)
    kinds = fields.Items(fields.Choice(Kind), min_items=1, max_items=len(Kind))


@dataclass(frozen=True)
class Policy:
    """The addresses that are told, and of which kinds of troubles."""

    emails: Sequence[str]
    kinds: Sequence[str]


represent = AlertsSchema.of

_READ = """
SELECT ARRAY(SELECT email FROM alert_recipients WHERE tenant_id = t.id ORDER BY email) AS emails,
       coalesce(alert_kinds, %s) AS kinds
  FROM tenants AS t WHERE t.id = %s
"""
_LOCK = "SELECT alert_kinds FROM tenants WHERE id = %s FOR NO KEY UPDATE"
_WATCH = "UPDATE tenants SET alert_kinds = %s WHERE id = %s"
_LEAVE = "DELETE FROM alert_recipients WHERE tenant_id = %s AND email <> ALL(%s) RETURNING email"
# Who comes later is not told what others were told.
_JOIN = """
INSERT INTO alert_recipients (tenant_id, email, told_through)
SELECT %(tenant)s, email,
       (SELECT coalesce(max(number), 0) FROM alerts WHERE tenant_id = %(tenant)s)
  FROM unnest(%(emails)s::text[]) AS email
ON CONFLICT DO NOTHING RETURNING email
"""
_CANCEL = """
UPDATE alert_mails AS m SET status = 'cancelled', error = 'The address was removed.'
 WHERE tenant_id = %s AND status = 'pending'
   AND NOT EXISTS (SELECT FROM alert_recipients AS r
                    WHERE r.tenant_id = m.tenant_id AND r.email = m.email AND r.nonce = m.nonce)
"""
# What waits because its recipient was refused is cancelled with them; the rest goes on at once.
_OPEN_JOBS = """
SELECT id FROM jobs WHERE tenant_id = %s AND kind = %s AND finished_at IS NULL
"""


def read(session: Session, tenant_id: UUID) -> Policy:
    """Return who is told of what; while nobody is, `kinds` are all that there are."""
    cur = cursor(session, class_row(Policy))
    return cur.execute(_READ, (list(Kind), tenant_id)).fetchall()[0]


def change(session: Session, caller: Caller, wanted: Policy) -> Policy:
    """Set who is told of what. Audited, without the addresses; no change leaves no entry."""
    before = _locked(session, caller.tenant_id)
    kinds = [kind for kind in Kind if kind in wanted.kinds]
    _set(session, caller.tenant_id, wanted.emails, kinds)
    after = read(session, caller.tenant_id)
    if (list(before.emails), list(before.kinds)) != (list(after.emails), list(after.kinds)):
        details = {"addresses": len(after.emails), "kinds": list(after.kinds)}
        target = ("tenant", ids.text("ten", caller.tenant_id))
        chain.append_by(session, caller, "alerts.update", target=target, details=details)
    return after


def leave(session: Session, subscription: Subscription, request_id: str) -> bool:
    """Remove the address that a mail's link was sent to; say whether it was still there."""
    tenant_id = subscription.tenant_id
    before = _locked(session, tenant_id)
    nonce = "DELETE FROM alert_recipients WHERE tenant_id = %s AND nonce = %s RETURNING email"
    gone = cursor(session).execute(nonce, (tenant_id, subscription.nonce)).fetchall()
    if not gone:
        return False
    left = [email for email in before.emails if (email,) not in gone]
    _set(session, tenant_id, left, before.kinds)
    chain.append(
        session,
        tenant_id,
        UNSUBSCRIBER,
        "alerts.unsubscribe",
        target=("tenant", ids.text("ten", tenant_id)),
        details={"addresses": len(left)},
        request_id=request_id,
    )
    return True


def _locked(session: Session, tenant_id: UUID) -> Policy:
    cursor(session).execute(_LOCK, (tenant_id,))
    return read(session, tenant_id)


def _set(session: Session, tenant_id: UUID, emails: Sequence[str], kinds: Sequence[str]) -> None:
    cur, emails = cursor(session), list(emails)
    cur.execute(_WATCH, (list(kinds) if emails else None, tenant_id))
    cur.execute(_LEAVE, (tenant_id, emails))
    cur.execute(_JOIN, {"tenant": tenant_id, "emails": emails})
    if cur.execute(_CANCEL, (tenant_id,)).rowcount:
        for (job_id,) in cur.execute(_OPEN_JOBS, (tenant_id, KIND)).fetchall():
            ring_job(session, tenant_id, job_id)


# Troubles are few, and most tenants have none: each part begins at those in trouble.
_STANDING = f"""
SELECT l.tenant_id, x.kind, 'whk_' || replace(w.id::text, '-', '') AS subject,
       min(CASE x.kind WHEN '{Kind.WEBHOOK_FAILING}' THEN l.failing_since
                       ELSE coalesce(l.unsuccessful_since, w.updated_at) END) AS since
  FROM lanes AS l
  JOIN webhook_lanes AS k ON k.tenant_id = l.tenant_id AND k.id = l.webhook_id
  JOIN webhooks AS w ON w.tenant_id = k.tenant_id AND w.id = k.webhook_id
 CROSS JOIN LATERAL (
       SELECT CASE WHEN w.status = 'disabled' THEN '{Kind.WEBHOOK_DISABLED}'
                   WHEN {REFUSES} THEN '{Kind.WEBHOOK_REFUSING}'
                   ELSE '{Kind.WEBHOOK_FAILING}' END AS kind) AS x
 WHERE l.unsuccessful_since IS NOT NULL AND {troubles.TROUBLED}
   AND (x.kind <> '{Kind.WEBHOOK_FAILING}' OR l.failing_since <= clock_timestamp() - %(lasting)s)
   AND NOT EXISTS (SELECT FROM lanes AS newer
                    WHERE newer.tenant_id = l.tenant_id AND newer.webhook_id = l.webhook_id
                      AND newer.version > l.version)
 GROUP BY l.tenant_id, x.kind, w.id
UNION ALL
SELECT tenant_id, '{Kind.AUDIT_CHAIN_BROKEN}', seq::text, detected_at
  FROM audit_breaks WHERE healed_at IS NULL AND subject = ''
UNION ALL
SELECT r.tenant_id, '{Kind.RULE_FAILING}', 'rul_' || replace(r.id::text, '-', ''),
       CASE WHEN r.enabled THEN v.created_at ELSE r.updated_at END
  FROM rules AS r
  JOIN rule_versions AS v ON v.tenant_id = r.tenant_id AND v.rule_id = r.id
       AND v.version = r.version
 WHERE {troubles.ERRED}
UNION ALL
SELECT t.id, '{Kind.HISTORY_ROLLED_BACK}', 'epo_' || replace(e.id::text, '-', ''), e.began_at
  FROM (SELECT id, began_at, lost FROM epochs ORDER BY number DESC LIMIT 1) AS e
  JOIN tenants AS t ON t.alert_kinds IS NOT NULL
 WHERE e.lost IS NOT NULL AND e.began_at > clock_timestamp() - interval '1 day'
"""
_TROUBLED = f"""
SELECT x.tenant_id FROM ({_STANDING}) AS x JOIN tenants AS t ON t.id = x.tenant_id
 WHERE x.kind = ANY(t.alert_kinds)
   AND NOT EXISTS (SELECT FROM alerts AS a
                    WHERE a.tenant_id = x.tenant_id AND a.kind = x.kind
                      AND a.subject = x.subject AND a.since = x.since)
"""
# As `schedule.KEEPS_BACK`, for an hour. A mail dated in the future was written before the clock was
# set back: it delays nothing.
_LATELY = """
(greatest(m.data_at, coalesce(m.sent_at, m.data_at + %(unheard)s))
     BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp() + interval '15 minutes'
 OR m.status = 'content_refused'
    AND m.claimed_at BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp())
"""
# Who was not told what was noted, and whose hour is over; `claimed_at` is for the index.
_UNTOLD = f"""
SELECT r.tenant_id, r.email FROM alert_recipients AS r
 WHERE EXISTS (SELECT FROM alerts AS a
                WHERE a.tenant_id = r.tenant_id AND a.number > r.told_through)
   AND NOT EXISTS (SELECT FROM alert_mails AS m
                    WHERE m.tenant_id = r.tenant_id AND m.email = r.email
                      AND m.status IN ('pending', 'sending'))
   AND NOT EXISTS (SELECT FROM alert_mails AS m
                    WHERE m.tenant_id = r.tenant_id AND m.email = r.email
                      AND m.claimed_at > clock_timestamp() - interval '2 days' AND {_LATELY})
"""
_DUE = f"""
SELECT t.id FROM tenants AS t
 WHERE t.alert_kinds IS NOT NULL AND t.suspended_at IS NULL
   AND (t.id IN ({_TROUBLED}) OR t.id IN (SELECT tenant_id FROM ({_UNTOLD}) AS u))
 ORDER BY random() LIMIT %(most)s
"""
_TAKE = "SELECT alert_kinds FROM tenants WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED"
# Numbered under the tenant's lock; a recipient may know of alerts that are deleted since.
_NOTE = """
INSERT INTO alerts (tenant_id, number, kind, subject, since, name, detail)
SELECT %(tenant)s, 1 + greatest(
           (SELECT max(number) FROM alerts WHERE tenant_id = %(tenant)s),
           (SELECT max(told_through) FROM alert_recipients WHERE tenant_id = %(tenant)s), 0),
       %(kind)s, %(subject)s, %(since)s, %(name)s, %(what)s
ON CONFLICT (tenant_id, kind, subject, since) DO NOTHING
"""
_CLAIM = f"""
INSERT INTO alert_mails (tenant_id, id, email, nonce, after)
SELECT r.tenant_id, %(id)s, r.email, r.nonce, r.told_through FROM alert_recipients AS r
 WHERE r.tenant_id = %(tenant)s AND r.email = %(email)s
   AND r.email IN (SELECT email FROM ({_UNTOLD} AND r.tenant_id = %(tenant)s) AS u)
"""


def due_tenants(session: Session) -> Sequence[UUID]:
    """Return up to 1,000 tenants with something to note or to tell, of all tenants."""
    wanted = {**schedule.TIMES, "most": AT_ONCE, "lasting": LASTING}
    return cursor(session, scalar_row).execute(_DUE.encode(), wanted).fetchall()


def note(session: Session, tenant_id: UUID) -> None:
    """Note a tenant's new troubles, and make the mails that are due with their jobs.

    Does nothing where the tenant's row is locked: the next tick tries again.
    """
    row = cursor(session).execute(_TAKE, (tenant_id,)).fetchone()
    if row is None or row[0] is None:
        return
    before = database_now(session) - LASTING
    for each in troubles.of_tenant(session, tenant_id):
        if each.kind in row[0] and _is_news(each, before):
            cursor(session).execute(_NOTE, {"tenant": tenant_id, **vars(each)})
    for email in read(session, tenant_id).emails:
        mail_id = ids.new()
        wanted = {"tenant": tenant_id, "id": mail_id, "email": email, **schedule.TIMES}
        if cursor(session).execute(_CLAIM.encode(), wanted).rowcount:
            enqueue(session, tenant_id, mail_id)


def _is_news(trouble: Trouble, before: datetime) -> bool:
    return trouble.kind is not Kind.WEBHOOK_FAILING or trouble.since <= before


def enqueue(session: Session, tenant_id: UUID, mail_id: UUID) -> None:
    """Enqueue the job of a mail, unless it has an open one."""
    args = {"alert_mail_id": ids.text("alm", mail_id)}
    job_queue.enqueue(session, tenant_id, kind=KIND, args=args, dedupe_key=str(mail_id))


_FORGOTTEN = """
SELECT m.tenant_id, m.id FROM alert_mails AS m
 WHERE m.status IN ('pending', 'sending')
   AND NOT EXISTS (SELECT FROM jobs AS j
                    WHERE j.tenant_id = m.tenant_id AND j.kind = %s AND j.dedupe_key = m.id::text
                      AND j.finished_at IS NULL)
 ORDER BY random() LIMIT %s
"""
_FORGET = (
    "DELETE FROM alert_mails WHERE claimed_at < %s AND status NOT IN ('pending', 'sending')",
    "DELETE FROM alerts WHERE noted_at < %s",
)


def forgotten(session: Session) -> Sequence[tuple[UUID, UUID]]:
    """Return open mails whose job has died, as (tenant id, mail id), of all tenants."""
    return [(row[0], row[1]) for row in cursor(session).execute(_FORGOTTEN, (KIND, AT_ONCE))]


def forget_old(session: Session, before: datetime) -> int:
    """Delete mails and alerts from before, of all tenants; return how many.

    A trouble that still stands then is told again.
    """
    return sum(cursor(session).execute(query, (before,)).rowcount for query in _FORGET)


class AlertMailSchema(AnswerSchema):
    """One mail of alerts to one recipient, and what became of it."""

    id = fields.Id("alm")
    to = fields.Text(mailbox.MAX_LENGTH, attribute="email")
    status = fields.Text(20)
    alerts = fields.Count(allow_none=True, description="How many it tells of; null before it left.")
    refusals = fields.Count()
    error = fields.Text(1000, allow_none=True)
    said = fields.Text(1000, allow_none=True)
    brief = fields.Boolean()
    claimed_at = fields.Time()
    data_at = fields.Time(allow_none=True)
    sent_at = fields.Time(allow_none=True)


represent_mail = AlertMailSchema.of


def mails(
    session: Session, tenant_id: UUID, before: UUID | None, limit: int
) -> Sequence[AlertMail]:
    """Return up to `limit` of a tenant's mails of alerts, newest first, older than `before`."""
    query = select(AlertMail).where(AlertMail.tenant_id == tenant_id)
    if before is not None:
        query = query.where(AlertMail.id < before)
    return session.scalars(query.order_by(AlertMail.id.desc()).limit(limit)).all()
