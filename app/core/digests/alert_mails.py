"""The job that sends one mail of alerts, by the machine of digests (`attempts`)."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.digests import attempts, letters, schedule, troubles
from app.core.digests.attempts import Attempt, Outcome, Sender
from app.core.digests.schedule import Subscription
from app.core.digests.sending import SUSPENDED
from app.core.digests.troubles import Kind, Trouble
from app.core.jobs.steps import Errand, Step
from app.database import cursor
from app.lib.mail.mailer import Letter
from app.lib.text_sanitizer import one_line
from app.models import Alert, AlertMail, AlertRecipient, Job, Tenant

MOST = 50
_REMOVED = Outcome("cancelled", "The address was removed.")
_OUTLIVED = Outcome("cancelled", "What it was to tell is older than the history kept.")
_PAGES = {"whk": "webhooks", "rul": "rules"}
_ORDER = list(reversed(Kind))
_TOLD = """
UPDATE alert_recipients SET told_through = %s WHERE tenant_id = %s AND email = %s AND nonce = %s
"""
_BEGIN = """
UPDATE alert_mails SET status = 'sending', data_at = clock_timestamp(), through = %s, alerts = %s
 WHERE tenant_id = %s AND id = %s AND status = 'pending'
"""


def step(sender: Sender, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Outcome]:
    """Send the job's mail, or end it."""
    mail = attempts.load(session, tenant_id, job, AlertMail)
    tenant = session.scalars(select(Tenant).where(Tenant.id == tenant_id)).one()
    if mail.status == "cancelled":
        sender.count_after(session, "cancelled")
    elif mail.status == "sending":
        # The worker that began it was lost before it could record the answer.
        sender.conclude(session, mail, attempts.LOST)
    elif mail.status == "pending" and _recipient(session, mail) is None:
        sender.conclude(session, mail, _REMOVED)
    elif mail.status == "pending" and not _untold(session, mail):
        sender.conclude(session, mail, _OUTLIVED)
    if mail.status != "pending":
        return Step(None, _progress(mail))
    if tenant.suspended_at:
        return Step("waiting", _progress(mail), SUSPENDED)
    return _Attempt(sender, job, mail, mail.email, tenant.name).errand()


@dataclass
class _Attempt(Attempt[AlertMail]):
    name: str
    through: int = field(default=0, init=False)
    count: int = field(default=0, init=False)

    def letter(self) -> Letter:
        settings, mail = self.sender.settings, self.mail
        with self.sender.database.transaction(mail.tenant_id) as session:
            found = _untold(session, mail)
            again = _again(session, mail)
        self.through, self.count = found[-1].number, len(found)
        known = sorted((_trouble(each) for each in found), key=lambda each: _ORDER.index(each.kind))
        name = one_line(self.name, 100)
        if mail.brief:
            known, name = list(map(troubles.without_words, known)), ids.text("ten", mail.tenant_id)
        token = schedule.write_token(
            settings.master_keys, Subscription(mail.tenant_id, mail.nonce), "alerts"
        )
        subject = f"Alert: {letters.of(len(known), 'trouble')}"
        data: dict[str, Any] = {
            "tenant": name,
            "subject": subject,
            "found": [(each, _place(each)) for each in known[:MOST]],
            "more": len(known[MOST:]),
            "again": again,
            "base_url": settings.base_url,
            "unsubscribe": f"{settings.base_url}/unsubscribe/{token}",
        }
        return letters.write(
            ids.text("alm", mail.id),
            subject,
            "alert",
            data,
            sender=settings.mail_from,
            recipient=self.address,
        )

    def begin(self, session: Session) -> str | None:
        if _recipient(session, self.mail, lock=True) is None:
            return "the address was removed"
        wanted = (self.through, self.count, self.mail.tenant_id, self.mail.id)
        if cursor(session).execute(_BEGIN, wanted).rowcount == 0:
            return "it was ended"
        return None

    def fate(self, session: Session) -> Outcome | bool:
        return _REMOVED if _recipient(session, self.mail, lock=True) is None else False

    def progress(self, mail: AlertMail) -> dict[str, Any]:
        return _progress(mail)

    def record(self, session: Session, mail: AlertMail, outcome: Outcome) -> None:
        super().record(session, mail, outcome)
        if mail.status == "sent":
            known = (mail.through, mail.tenant_id, mail.email, mail.nonce)
            cursor(session).execute(_TOLD, known)


def _recipient(session: Session, mail: AlertMail, *, lock: bool = False) -> AlertRecipient | None:
    """Return whom the mail is for; None once they were removed, also if they came back since."""
    wanted = select(AlertRecipient).where(
        AlertRecipient.tenant_id == mail.tenant_id,
        AlertRecipient.email == mail.email,
        AlertRecipient.nonce == mail.nonce,
    )
    return session.scalars(wanted.with_for_update() if lock else wanted).one_or_none()


def _untold(session: Session, mail: AlertMail) -> list[Alert]:
    wanted = select(Alert).where(Alert.tenant_id == mail.tenant_id, Alert.number > mail.after)
    return list(session.scalars(wanted.order_by(Alert.number)))


def _again(session: Session, mail: AlertMail) -> bool:
    """Say whether an earlier mail with some of these alerts may have arrived."""
    wanted = select(AlertMail.id).where(
        AlertMail.tenant_id == mail.tenant_id,
        AlertMail.email == mail.email,
        AlertMail.after == mail.after,
        AlertMail.status == "uncertain",
    )
    return session.scalars(wanted.limit(1)).first() is not None


def _trouble(alert: Alert) -> Trouble:
    return Trouble(Kind(alert.kind), alert.subject, alert.since, alert.name, alert.detail)


def _place(trouble: Trouble) -> str:
    """Return the path of the console's page of a trouble."""
    page = _PAGES.get(trouble.subject.partition("_")[0])
    return "audit" if page is None else f"{page}/{trouble.subject}"


def _progress(mail: AlertMail) -> dict[str, Any]:
    return {"status": mail.status, "alerts": mail.alerts, "refusals": mail.refusals}
