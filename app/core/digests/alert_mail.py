"""One mail of alerts to one recipient: how it is written, sent and shown."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.digests import letters, troubles
from app.core.digests.sending import Outcome, Sending
from app.core.digests.troubles import Kind, Trouble
from app.database import cursor
from app.lib.mail import mailbox
from app.lib.text_sanitizer import one_line
from app.models import Alert, AlertMail, AlertRecipient
from app.schemas import fields
from app.schemas.schema import AnswerSchema

MOST = 50
_REMOVED = Outcome("cancelled", "The address was removed.")
_OUTLIVED = Outcome("cancelled", "What it was to tell is older than the history kept.")
_ORDER = list(reversed(Kind))
_TOLD = """
UPDATE alert_recipients SET told_through = %s WHERE tenant_id = %s AND email = %s AND nonce = %s
"""
_BEGIN = """
UPDATE alert_mails SET status = 'sending', data_at = clock_timestamp(), through = %s, alerts = %s
 WHERE tenant_id = %s AND id = %s AND status = 'pending'
"""


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


represent = AlertMailSchema.of


class AlertSending(Sending[AlertMail]):
    """The job of a mail of alerts."""

    kind, prefix, of, model = "alert_mail", "alm", "alerts", AlertMail
    template, mails = "alert", "alerts"
    # The last alert that the mail tells of, and how many: known once it is written.
    through = count = 0

    @property
    def _address(self) -> str:
        return self.mail.email

    def _over(self, session: Session) -> Outcome | None:
        """Say whether its recipient was removed, also if they came back since."""
        wanted = select(AlertRecipient).where(
            AlertRecipient.tenant_id == self.mail.tenant_id,
            AlertRecipient.email == self.mail.email,
            AlertRecipient.nonce == self.mail.nonce,
        )
        if session.scalars(wanted.with_for_update()).one_or_none() is None:
            return _REMOVED
        return None if self._untold(session) else _OUTLIVED

    def _readdressed(self, session: Session) -> bool:
        return False

    def _content(self, session: Session) -> tuple[str, dict[str, Any], UUID]:
        mail, found = self.mail, self._untold(session)
        self.through, self.count = found[-1].number, len(found)
        known = [Trouble(Kind(a.kind), a.subject, a.since, a.name, a.detail) for a in found]
        known.sort(key=lambda each: _ORDER.index(each.kind))
        name = one_line(self.tenant.name, 100)
        if mail.brief:
            known, name = [*map(troubles.without_words, known)], ids.text("ten", mail.tenant_id)
        more, again = len(known[MOST:]), self._again(session)
        data = {"tenant": name, "found": known[:MOST], "more": more, "again": again}
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
