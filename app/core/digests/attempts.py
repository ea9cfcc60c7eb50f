"""One attempt to hand a mail to the mail server: a digest, or an alert.

pending ──▶ sending ──▶ sent
▲           │ ├────▶ uncertain     pending ──▶ cancelled (its recipient is gone)
└───────────┘ └────▶ content_refused (also without words)
refused, or not reached

`sending` is committed before the content leaves: until then any failure is retried, afterwards only
a refusal is.
"""

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids
from app.core.jobs import job_rows, leases
from app.core.jobs.steps import Errand, Step
from app.database import Database, after_commit, cursor
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
from app.models import AlertMail, Digest, Job
from app.settings import Settings

# Waits before further attempts (backoff); the last repeats for ever, as no mail was accepted yet.
WAITS = tuple(timedelta(minutes=minutes) for minutes in (0.5, 2, 10, 30, 60))
_AGAIN_SOON = timedelta(seconds=5)
# Wait after an attempt that ended before its content: the address was changed, or the process ends.
# A clock that was set back may have another mail keep it back for a day, asking each minute.
_WITHDRAWN = timedelta(minutes=1)
# Interval at which a refused recipient is tried: who asks more often is blocked by some servers.
_RECIPIENT_REFUSED = timedelta(days=1)
# Wait while another mail is on its way from this process, with jitter: the jobs of many tenants are
# due at once.
_BUSY_SECONDS = (5.0, 30.0)
# Characters kept of what the mail server said.
_MOST_SAID = 300

_log = structlog.get_logger(__name__)

Row = TypeVar("Row", Digest, AlertMail)
PREFIXES = {Digest: ("dig", "digest"), AlertMail: ("alm", "alert_mail")}


@dataclass(frozen=True)
class Outcome:
    """An attempt's outcome: the mail's next status, and the reason, if any.

    `pending` without a reason: the server refused nothing. `refusal` is what it refused for good,
    and `said` its words. `busy`: the attempt did not begin.
    """

    status: str
    why: str | None = None
    busy: bool = False
    refusal: Refusal | None = None
    said: str | None = None


LOST = Outcome("uncertain", "The worker was lost while it sent.")

_CONCLUDE = """
UPDATE {table}
   SET status = %(status)s, error = %(why)s, refusal = %(refusal)s, said = %(said)s,
       brief = brief OR coalesce(%(refusal)s = 'content', false),
       data_at = CASE WHEN %(status)s IN ('sent', 'uncertain') THEN data_at END,
       sent_at = CASE WHEN %(status)s = 'sent' THEN clock_timestamp() END,
       refusals = refusals
           + CASE WHEN %(status)s IN ('pending', 'content_refused') THEN 1 ELSE 0 END
 WHERE tenant_id = %(tenant)s AND id = %(id)s AND status IN ('pending', 'sending')
"""


@dataclass(frozen=True)
class Sender:
    """Services of the process for sending: the mail server's client, and short transactions.

    `stopping` says that the process is shutting down: no mail is begun then. `count` gets the
    outcome of each attempt, and of mails that end without one.
    """

    database: Database
    settings: Settings
    mailer: Mailer
    stopping: Callable[[], bool]
    count: Callable[[str], None]

    def conclude(self, session: Session, mail: Row, outcome: Outcome) -> None:
        """Write an outcome to the mail's row, unless it was cancelled meanwhile; count it."""
        wanted = {
            "tenant": mail.tenant_id,
            "id": mail.id,
            "status": outcome.status,
            "why": outcome.why,
            "refusal": outcome.refusal,
            "said": outcome.said,
        }
        query = _CONCLUDE.format(table=mail.__tablename__)
        cursor(session).execute(query.encode(), wanted)
        session.refresh(mail)
        kind = PREFIXES[type(mail)][1]
        _log.info(
            f"{kind}_refused" if mail.status == "pending" else f"{kind}_{mail.status}",
            **{kind: name_of(mail)},
            refusals=mail.refusals,
            refusal=mail.refusal,
            why=outcome.why,
        )
        refused = mail.status in ("pending", "content_refused")
        self.count_after(session, "refused" if refused else mail.status)

    def count_after(self, session: Session, outcome: str) -> None:
        """Count an outcome once it is committed."""
        after_commit(session, partial(self.count, outcome))


def name_of(mail: Digest | AlertMail) -> str:
    """Return the mail's public id."""
    return ids.text(PREFIXES[type(mail)][0], mail.id)


def load(session: Session, tenant_id: UUID, job: Job, model: type[Row]) -> Row:
    """Return the job's mail, unlocked: a change of its recipient must not wait for a reader."""
    prefix, kind = PREFIXES[model]
    mail_id = ids.read(prefix, job_rows.args_of(job)[f"{kind}_id"])
    return session.get_one(model, (tenant_id, mail_id), populate_existing=True)


@dataclass
class Attempt(ABC, Generic[Row]):
    """An attempt to hand a mail to the mail server, with two short transactions of its own.

    The first reads the content, the second commits `sending`: the mail may be accepted from then.
    `withdrawn` is the reason why it must not be sent.
    """

    sender: Sender
    job: Job
    mail: Row
    address: str
    withdrawn: str | None = field(default=None, init=False)

    @abstractmethod
    def letter(self) -> Letter:
        """Write the mail."""

    @abstractmethod
    def begin(self, session: Session) -> str | None:
        """Set the mail to `sending`; return the reason if it must not be sent."""

    @abstractmethod
    def fate(self, session: Session) -> Outcome | bool:
        """Return what ends the refused mail; or else whether its address has changed."""

    @abstractmethod
    def progress(self, mail: Row) -> dict[str, Any]:
        """Return the mail's state as the job's progress."""

    def errand(self) -> Errand[Outcome]:
        """Return the attempt as an errand of its job."""
        return Errand(self._talk, self._record)

    def _talk(self) -> Outcome:
        """Hand the mail to the server."""
        try:
            self.sender.mailer.deliver(self.letter, self._go_ahead)
        except NotAccepted as error:
            return Outcome(
                "pending", str(error), refusal=error.refusal, said=self._kept(error.said)
            )
        except AnswerLost as error:
            return Outcome("uncertain", str(error))
        except Withdrawn:
            kind = PREFIXES[type(self.mail)][1]
            _log.info(f"{kind}_cancelled", **{kind: name_of(self.mail)}, why=self.withdrawn)
            return Outcome("pending")
        except Busy:
            return Outcome("pending", busy=True)
        return Outcome("sent")

    def _kept(self, said: str | None) -> str | None:
        """Return the server's words without what a mail's row does not keep.

        That is the address, and a link that clears it.
        """
        if said is None:
            return None
        said = re.sub(re.escape(self.address), "(the recipient)", said, flags=re.IGNORECASE)
        return one_line(re.sub(r"/unsubscribe/\S+", "/unsubscribe/…", said), _MOST_SAID)

    def _go_ahead(self) -> bool:
        """Commit that the mail may be accepted from now on; False when it must not be sent."""
        if self.sender.stopping():
            self.withdrawn = "the process is to end"
        else:
            with self.sender.database.transaction(self.mail.tenant_id) as session:
                held = leases.renew(session, self.job)
                self.withdrawn = self.begin(session) if held else "the job was taken over"
        return self.withdrawn is None

    def _record(self, session: Session, outcome: Outcome) -> Step:
        """Record the outcome: the mail has ended, or is tried again later."""
        mail = load(session, self.mail.tenant_id, self.job, type(self.mail))
        if outcome.busy:
            seconds = random.uniform(*_BUSY_SECONDS)  # noqa: S311  # no secret
            return Step("busy", self.progress(mail), timedelta(seconds=seconds))
        if outcome.status == "pending" and outcome.why is None:
            return Step("withdrawn", self.progress(mail), _WITHDRAWN)
        if outcome.status == "pending":
            return self._refused(session, mail, outcome)
        self.record(session, mail, outcome)
        return Step(None, self.progress(mail))

    def record(self, session: Session, mail: Row, outcome: Outcome) -> None:
        """Write that the mail was sent, or that nobody knows."""
        self.sender.conclude(session, mail, outcome)

    def _refused(self, session: Session, mail: Row, outcome: Outcome) -> Step:
        """Retry later: soon if the address has changed, never if it was cleared.

        A later change of the address makes the waiting job due. Content that was refused is sent
        without words soon, and given up when it was without them.
        """
        fate, of_content = self.fate(session), outcome.refusal is Refusal.CONTENT
        if isinstance(fate, Outcome):
            outcome = fate
        elif of_content and self.mail.brief and not fate:
            outcome = replace(outcome, status="content_refused")
        self.sender.conclude(session, mail, outcome)
        if mail.status != "pending":
            return Step(None, self.progress(mail))
        if fate:
            return Step("readdressed", self.progress(mail), _AGAIN_SOON)
        if of_content:
            return Step("without words", self.progress(mail), _AGAIN_SOON)
        if outcome.refusal is Refusal.RECIPIENT:
            return Step("recipient refused", self.progress(mail), _RECIPIENT_REFUSED)
        return Step("refused", self.progress(mail), WAITS[min(mail.refusals, len(WAITS)) - 1])
