"""Alerts: who is told of which troubles, the troubles noted, and the mails due for them.

A tick looks for troubles: each is noted once for as long as it stands, in the transaction that
makes the mails for it. A recipient gets one mail in an hour at most, with all that was noted since
the last; whatever keeps a mail back, the next one lists it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import UNSUBSCRIBER, Caller
from app.core.digests import letters, troubles
from app.core.digests.letters import Subscription
from app.core.digests.sending import AT_ONCE, TIMES, Outcome, Sending
from app.core.digests.troubles import Kind, Trouble
from app.database import cursor
from app.lib.mail import mailbox
from app.lib.text_sanitizer import one_line
from app.models import Alert, AlertMail, AlertRecipient
from app.schemas import fields
from app.schemas.schema import AnswerSchema

_MOST_TOLD = 50
_REMOVED = Outcome("cancelled", "The address was removed.")
_OUTLIVED = Outcome("cancelled", "What it was to tell is older than the history kept.")
_TOLD = """
UPDATE alert_recipients SET told_through = %s WHERE tenant_id = %s AND email = %s AND nonce = %s
"""
_BEGIN = """
UPDATE alert_mails SET status = 'sending', data_at = clock_timestamp(), through = %s, alerts = %s
 WHERE tenant_id = %s AND id = %s AND status = 'pending'
"""
MOST_RECIPIENTS = 10
# A webhook that fails for seconds, while its receiver is deployed, is no news yet.
LASTING = timedelta(minutes=5)


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


class AlertSending(Sending[AlertMail]):
    """The job of a mail of alerts."""

    kind, prefix, of, model = "alert_mail", "alm", "alerts", AlertMail
    template, mails = "alert", "alerts"
    # The last alert that the mail tells of, and how many: known once it is written.
    through = count = 0

    @property
    def _address(self) -> str:
        return self.mail.email

    def _changed(self, session: Session, *, lock: bool = False) -> Outcome | None:
        """Say whether its recipient was removed, also if they came back since."""
        mail = self.mail
        wanted = select(AlertRecipient).where(
            AlertRecipient.tenant_id == mail.tenant_id,
            AlertRecipient.email == mail.email,
            AlertRecipient.nonce == mail.nonce,
        )
        if session.scalars(wanted.with_for_update() if lock else wanted).one_or_none() is None:
            return _REMOVED
        return None if self._untold(session) else _OUTLIVED

    def _content(self, session: Session) -> tuple[str, dict[str, Any], UUID]:
        mail, found = self.mail, self._untold(session)
        self.through, self.count = found[-1].number, len(found)
        known = [Trouble(Kind(a.kind), a.subject, a.since, a.name, a.detail) for a in found]
        known.sort(key=troubles.gravest_first)
        name = one_line(self.tenant.name, 100)
        if mail.brief:
            known, name = [*map(troubles.without_words, known)], ids.text("ten", mail.tenant_id)
        more, again = len(known[_MOST_TOLD:]), self._again(session)
        data = {"tenant": name, "found": known[:_MOST_TOLD], "more": more, "again": again}
        return f"Alert: {letters.of(len(known), 'trouble')}", data, mail.nonce

    def _begin(self, session: Session) -> bool:
        wanted = (self.through, self.count, self.mail.tenant_id, self.mail.id)
        return cursor(session).execute(_BEGIN, wanted).rowcount == 1

    def _conclude(self, session: Session, outcome: Outcome) -> None:
        super()._conclude(session, outcome)
        mail = self.mail
        if mail.status == "sent":
            known = (mail.through, mail.tenant_id, mail.email, mail.nonce)
            cursor(session).execute(_TOLD, known)

    def _untold(self, session: Session) -> Sequence[Alert]:
        mine = Alert.tenant_id == self.mail.tenant_id
        wanted = select(Alert).where(mine, Alert.number > self.mail.after)
        return session.scalars(wanted.order_by(Alert.number)).all()

    def _again(self, session: Session) -> bool:
        """Say whether an earlier mail with some of these alerts may have arrived."""
        mail = self.mail
        wanted = select(AlertMail.id).where(
            AlertMail.tenant_id == mail.tenant_id,
            AlertMail.email == mail.email,
            AlertMail.after == mail.after,
            AlertMail.status == "uncertain",
        )
        return session.scalars(wanted.limit(1)).first() is not None


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
_LOCK = "SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE"
_WATCH = "UPDATE tenants SET alert_kinds = %s WHERE id = %s"
_LEAVE = "DELETE FROM alert_recipients WHERE tenant_id = %s AND email <> ALL(%s) RETURNING email"
_LEAVE_BY_LINK = "DELETE FROM alert_recipients WHERE tenant_id = %s AND nonce = %s RETURNING email"
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
    gone = cursor(session, scalar_row).execute(_LEAVE_BY_LINK, subscription).fetchall()
    if not gone:
        return False
    left = [email for email in before.emails if email not in gone]
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
        AlertSending.hurry(session, tenant_id)


# What stands, is watched, and was not noted yet.
_NEWS = f"""
SELECT x.* FROM ({troubles.STANDING}) AS x JOIN tenants AS t ON t.id = x.tenant_id
 WHERE x.kind = ANY(t.alert_kinds)
   AND (x.kind <> '{Kind.WEBHOOK_FAILING}' OR x.since <= clock_timestamp() - %(lasting)s)
   AND NOT EXISTS (SELECT FROM alerts AS a
                    WHERE a.tenant_id = x.tenant_id AND a.kind = x.kind
                      AND a.subject = x.subject AND a.since = x.since)
"""
# As `digest_mail.KEEPS_BACK`, for an hour. A mail dated in the future was written before the clock
# was set back: it delays nothing.
_LATELY = """
(greatest(m.data_at, coalesce(m.sent_at, m.data_at + %(unheard)s))
     BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp() + interval '15 minutes'
 OR m.status = 'content_refused'
    AND m.claimed_at BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp())
"""
# Who was not told what was noted, and whose hour is over; a mail may leave days after its claim.
_UNTOLD = f"""
SELECT r.tenant_id, r.email, r.nonce, r.told_through FROM alert_recipients AS r
 WHERE EXISTS (SELECT FROM alerts AS a
                WHERE a.tenant_id = r.tenant_id AND a.number > r.told_through)
   AND NOT EXISTS (SELECT FROM alert_mails AS m
                    WHERE m.tenant_id = r.tenant_id AND m.email = r.email
                      AND m.status IN ('pending', 'sending'))
   AND NOT EXISTS (SELECT FROM alert_mails AS m
                    WHERE m.tenant_id = r.tenant_id AND m.email = r.email AND {_LATELY})
"""
_DUE = f"""
SELECT t.id FROM tenants AS t
 WHERE t.alert_kinds IS NOT NULL AND t.suspended_at IS NULL
   AND (t.id IN (SELECT tenant_id FROM ({_NEWS}) AS n)
        OR t.id IN (SELECT tenant_id FROM ({_UNTOLD}) AS u))
 ORDER BY random() LIMIT %(most)s
"""
# Numbered under the tenant's lock; a recipient may know of alerts that are deleted since.
_NOTE = """
INSERT INTO alerts (tenant_id, number, kind, subject, since, name, detail)
SELECT %(tenant)s, 1 + greatest(
           (SELECT max(number) FROM alerts WHERE tenant_id = %(tenant)s),
           (SELECT max(told_through) FROM alert_recipients WHERE tenant_id = %(tenant)s), 0),
       %(kind)s, %(subject)s, %(since)s, %(name)s, %(what)s
ON CONFLICT (tenant_id, kind, subject, since) DO NOTHING
"""
_CLAIM = """
INSERT INTO alert_mails (tenant_id, id, email, nonce, after) VALUES (%s, %s, %s, %s, %s)
"""


def due_tenants(session: Session) -> Sequence[UUID]:
    """Return up to 1,000 tenants with something to note or to tell, of all tenants."""
    wanted = {**TIMES, "most": AT_ONCE, "lasting": LASTING}
    return cursor(session, scalar_row).execute(_DUE.encode(), wanted).fetchall()


def note(session: Session, tenant_id: UUID) -> None:
    """Note a tenant's new troubles, and make the mails that are due with their jobs.

    Does nothing where the tenant's row is locked: the next tick tries again.
    """
    cur, wanted = cursor(session), {**TIMES, "tenant": tenant_id, "lasting": LASTING}
    if cur.execute(f"{_LOCK} SKIP LOCKED".encode(), (tenant_id,)).fetchone() is None:
        return
    for each in troubles.read(session, f"{_NEWS} AND t.id = %(tenant)s", wanted):
        cur.execute(_NOTE, {"tenant": tenant_id, **vars(each)})
    untold = cur.execute(f"{_UNTOLD} AND r.tenant_id = %(tenant)s".encode(), wanted).fetchall()
    for _, email, nonce, told_through in untold:
        mail_id = ids.new()
        cur.execute(_CLAIM, (tenant_id, mail_id, email, nonce, told_through))
        AlertSending.enqueue(session, tenant_id, mail_id)


_FORGET = (
    "DELETE FROM alert_mails WHERE claimed_at < %s AND status NOT IN ('pending', 'sending')",
    "DELETE FROM alerts WHERE noted_at < %s",
)


def forget_old(session: Session, before: datetime) -> int:
    """Delete mails and alerts from before, of all tenants; return how many.

    A trouble that still stands then is told again.
    """
    return sum(cursor(session).execute(query, (before,)).rowcount for query in _FORGET)
