"""The job that sends one digest: take the findings, deliver the mail, record the outcome.

`sending` is committed before the mail's content leaves (`_Attempt.go_ahead`). Until then any
failure is retried; afterwards only a refusal is. A lost worker or answer (`uncertain`), or content
that is refused also without words, has the next digest list the same.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.digests import content, digest_rows, schedule
from app.core.digests.digest_rows import Outcome
from app.core.digests.schedule import Subscription
from app.core.jobs import leases
from app.core.jobs.steps import Errand, Step
from app.database import Database, after_commit
from app.lib.mail.mailer import (
    AnswerLost,
    Busy,
    Letter,
    Mailer,
    NotAccepted,
    Refusal,
    Withdrawn,
)
from app.lib.text_sanitizer import one_line
from app.models import Digest, Job, Tenant
from app.settings import Settings

# Waits before further attempts (backoff); the last repeats for ever, as no mail was accepted yet.
WAITS = tuple(timedelta(minutes=minutes) for minutes in (0.5, 2, 10, 30, 60))
_AGAIN_SOON = timedelta(seconds=5)
# Wait after an attempt that ended before its content: the address was changed, or the process ends.
# A clock that was set back may have another mail keep it back for a day, asking each minute.
_WITHDRAWN = timedelta(minutes=1)
# Interval at which the digest of a suspended tenant is tried.
_SUSPENDED = timedelta(minutes=10)
# Interval at which a refused recipient is tried: who asks more often is blocked by some servers.
_RECIPIENT_REFUSED = timedelta(days=1)
# Wait while another mail is on its way from this process, with jitter: the jobs of many tenants are
# due at once.
_BUSY_SECONDS = (5.0, 30.0)
# Characters kept of what the mail server said.
_MOST_SAID = 300

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Sender:
    """Services of the process for sending: the mail server's client, and short transactions.

    `stopping` says that the process is shutting down: no mail is begun then. `count` gets the
    outcome of each attempt, and of digests that end without one.
    """

    database: Database
    settings: Settings
    mailer: Mailer
    stopping: Callable[[], bool]
    count: Callable[[str], None]

    def step(self, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Outcome]:
        """Do the next step of the job's digest: assign its findings, send it, or end it."""
        digest = digest_rows.load(session, tenant_id, job)
        tenant = session.scalars(select(Tenant).where(Tenant.id == tenant_id)).one()
        if digest.status == "cancelled":
            self.count_after(session, "cancelled")
        elif digest.status == "sending":
            # The worker that began it was lost before it could record the answer.
            self.conclude(
                session, digest, Outcome("uncertain", "The worker was lost while it sent.")
            )
        elif digest.status == "pending" and tenant.digest_series != digest.series:
            self.conclude(session, digest, _CLEARED)
        if digest.status != "pending":
            return _done(digest)
        if digest.findings is None:
            return Step(digest_rows.take(session, digest, job.cursor), _progress(digest))
        if tenant.suspended_at:
            return Step("waiting", _progress(digest), _SUSPENDED)
        address, nonce = tenant.notification_email, tenant.address_nonce
        # A series lasts as long as there is an address, and each address has a nonce.
        assert address is not None and nonce is not None  # noqa: S101, PT018
        attempt = _Attempt(self, job, digest, tenant.name, address, nonce)
        return Errand(attempt.talk, attempt.record)

    def conclude(self, session: Session, digest: Digest, outcome: Outcome) -> None:
        """Write an outcome to the digest's row, and count it."""
        digest_rows.conclude(session, digest, outcome)
        refused = digest.status in ("pending", "content_refused")
        self.count_after(session, "refused" if refused else digest.status)

    def count_after(self, session: Session, outcome: str) -> None:
        """Count an outcome once it is committed."""
        after_commit(session, partial(self.count, outcome))


@dataclass
class _Attempt:
    """An attempt to hand a digest to the mail server, with two short transactions of its own.

    The first reads the content, the second commits `sending`: the mail may be accepted from then.
    `withdrawn` is the reason why it must not be sent.
    """

    sender: Sender
    job: Job
    digest: Digest
    name: str
    address: str
    nonce: UUID
    withdrawn: str | None = None

    def talk(self) -> Outcome:
        """Hand the mail to the server."""
        try:
            self.sender.mailer.deliver(self._letter, self.go_ahead)
        except NotAccepted as error:
            return Outcome(
                "pending", str(error), refusal=error.refusal, said=self._kept(error.said)
            )
        except AnswerLost as error:
            return Outcome("uncertain", str(error))
        except Withdrawn:
            _log.info(
                "digest_cancelled", digest=ids.text("dig", self.digest.id), why=self.withdrawn
            )
            return Outcome("pending")
        except Busy:
            return Outcome("pending", busy=True)
        return Outcome("sent")

    def _letter(self) -> Letter:
        settings, digest = self.sender.settings, self.digest
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

    def _kept(self, said: str | None) -> str | None:
        """Return the server's words without what a digest's row does not keep.

        That is the address, and a link that clears it.
        """
        if said is None:
            return None
        said = re.sub(re.escape(self.address), "(the recipient)", said, flags=re.IGNORECASE)
        return one_line(re.sub(r"/unsubscribe/\S+", "/unsubscribe/…", said), _MOST_SAID)

    def go_ahead(self) -> bool:
        """Commit that the mail may be accepted from now on; False when it must not be sent."""
        if self.sender.stopping():
            self.withdrawn = "the process is to end"
        else:
            with self.sender.database.transaction(self.digest.tenant_id) as session:
                self.withdrawn = self._begin(session)
        return self.withdrawn is None

    def _begin(self, session: Session) -> str | None:
        """Set the digest to `sending`; return the reason if it must not be sent."""
        digest = self.digest
        address, series, nonce = digest_rows.lock_address(session, digest)
        if series != digest.series or address is None or nonce != self.nonce:
            return "the address was changed or cleared"
        if not leases.renew(session, self.job):
            return "the job was taken over"
        if not digest_rows.begin(session, digest):
            return "it was ended, or another was sent within a day"
        return None

    def record(self, session: Session, outcome: Outcome) -> Step:
        """Record the outcome: the digest has ended, or is tried again later."""
        digest = digest_rows.load(session, self.digest.tenant_id, self.job)
        if outcome.busy:
            seconds = random.uniform(*_BUSY_SECONDS)  # noqa: S311  # no secret
            return Step("busy", _progress(digest), timedelta(seconds=seconds))
        if outcome.status == "pending" and outcome.why is None:
            return Step("withdrawn", _progress(digest), _WITHDRAWN)
        if outcome.status == "pending":
            return self._refused(session, digest, outcome)
        self.sender.conclude(session, digest, outcome)
        return _done(digest)

    def _refused(self, session: Session, digest: Digest, outcome: Outcome) -> Step:
        """Retry later: soon if the address has changed, never if it was cleared.

        A later change of the address makes the waiting job due. Content that was refused is sent
        without words soon, and given up when it was without them.
        """
        address, series, nonce = digest_rows.lock_address(session, digest)
        readdressed = address is not None and nonce != self.nonce
        of_content = outcome.refusal is Refusal.CONTENT
        if series != digest.series:
            outcome = _CLEARED
        elif of_content and self.digest.brief and not readdressed:
            outcome = replace(outcome, status="content_refused")
        self.sender.conclude(session, digest, outcome)
        if digest.status != "pending":
            return _done(digest)
        if readdressed:
            return Step("readdressed", _progress(digest), _AGAIN_SOON)
        if of_content:
            return Step("without words", _progress(digest), _AGAIN_SOON)
        if outcome.refusal is Refusal.RECIPIENT:
            return Step("recipient refused", _progress(digest), _RECIPIENT_REFUSED)
        return Step("refused", _progress(digest), WAITS[min(digest.refusals, len(WAITS)) - 1])


_CLEARED = Outcome("cancelled", "The address was cleared.")


def _done(digest: Digest) -> Step:
    return Step(None, _progress(digest))


def _progress(digest: Digest) -> dict[str, Any]:
    """Return the digest's state as the job's progress."""
    return {"status": digest.status, "findings": digest.findings, "refusals": digest.refusals}
