"""The job that sends one digest: take the findings, then hand over the mail (`attempts`).

A lost worker or answer (`uncertain`), or content that is refused also without words, has the next
digest list the same.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.digests import attempts, content, digest_rows, schedule
from app.core.digests.attempts import Attempt, Outcome, Sender
from app.core.digests.schedule import Subscription
from app.core.jobs.steps import Errand, Step
from app.lib.mail.mailer import Letter
from app.models import Digest, Job, Tenant

# Interval at which the digest of a suspended tenant is tried.
SUSPENDED = timedelta(minutes=10)
_CLEARED = Outcome("cancelled", "The address was cleared.")


def step(sender: Sender, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Outcome]:
    """Do the next step of the job's digest: assign its findings, send it, or end it."""
    digest = attempts.load(session, tenant_id, job, Digest)
    tenant = session.scalars(select(Tenant).where(Tenant.id == tenant_id)).one()
    if digest.status == "cancelled":
        sender.count_after(session, "cancelled")
    elif digest.status == "sending":
        # The worker that began it was lost before it could record the answer.
        sender.conclude(session, digest, attempts.LOST)
    elif digest.status == "pending" and tenant.digest_series != digest.series:
        sender.conclude(session, digest, _CLEARED)
    if digest.status != "pending":
        return Step(None, _progress(digest))
    if digest.findings is None:
        return Step(digest_rows.take(session, digest, job.cursor), _progress(digest))
    if tenant.suspended_at:
        return Step("waiting", _progress(digest), SUSPENDED)
    address, nonce = tenant.notification_email, tenant.address_nonce
    # A series lasts as long as there is an address, and each address has a nonce.
    assert address is not None and nonce is not None  # noqa: S101, PT018
    return _Attempt(sender, job, digest, address, tenant.name, nonce).errand()


@dataclass
class _Attempt(Attempt[Digest]):
    name: str
    nonce: UUID

    def letter(self) -> Letter:
        settings, digest = self.sender.settings, self.mail
        subscription = Subscription(digest.tenant_id, self.nonce)
        with self.sender.database.transaction(digest.tenant_id) as session:
            read = content.read(session, digest.tenant_id, self.name, digest.id)
        if digest.brief:
            read = content.without_words(read, digest.tenant_id)
        return content.write(
            digest.id,
            read,
            settings.base_url,
            schedule.write_token(settings.master_keys, subscription),
            sender=settings.mail_from,
            recipient=self.address,
        )

    def begin(self, session: Session) -> str | None:
        address, series, nonce = digest_rows.lock_address(session, self.mail)
        if series != self.mail.series or address is None or nonce != self.nonce:
            return "the address was changed or cleared"
        if not digest_rows.begin(session, self.mail):
            return "it was ended, or another was sent within a day"
        return None

    def fate(self, session: Session) -> Outcome | bool:
        address, series, nonce = digest_rows.lock_address(session, self.mail)
        if series != self.mail.series:
            return _CLEARED
        return address is not None and nonce != self.nonce

    def progress(self, mail: Digest) -> dict[str, Any]:
        return _progress(mail)


def _progress(digest: Digest) -> dict[str, Any]:
    """Return the digest's state as the job's progress."""
    return {"status": digest.status, "findings": digest.findings, "refusals": digest.refusals}
