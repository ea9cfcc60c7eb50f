"""The job of one mail, a digest or a mail of alerts: it is claimed once, and sent at most once.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.digests import letters
from app.core.digests.letters import Subscription
from app.core.jobs import job_queue, job_rows, leases
from app.core.jobs.steps import Errand, Step
from app.core.wakeups import ring_job
from app.database import Database, after_commit, cursor
from app.lib.mail.mailer import (
    DATA_SECONDS,
    AnswerLost,
    Busy,
    Letter,
    Mailer,
    NotAccepted,
    Refusal,
    Withdrawn,
)
from app.lib.text_sanitizer import one_line
from app.models import AlertMail, Digest, Job, Tenant
from app.settings import Settings

AT_ONCE = 1000
# Waits before further attempts (backoff); the last repeats for ever, as no mail was accepted yet.
WAITS = tuple(timedelta(minutes=minutes) for minutes in (0.5, 2, 10, 30, 60))
_AGAIN_SOON = timedelta(seconds=5)
# Interval at which the mail of a suspended tenant is tried.
_SUSPENDED = timedelta(minutes=10)
# Wait after an attempt that ended before its content: the address was changed, or the process ends.
# A clock that was set back may have another mail keep it back for a day, asking each minute.
_WITHDRAWN = timedelta(minutes=1)
# Interval at which a refused recipient is tried: who asks more often is blocked by some servers.
_RECIPIENT_REFUSED = timedelta(days=1)
# Wait while another mail is on its way from this process, with jitter: the jobs of many tenants are
# due at once.
_BUSY_SECONDS = (5.0, 30.0)
# A mail is accepted, if at all, before `sent_at`. A mail whose answer was lost left within
# `DATA_SECONDS` of its `data_at`, and the server may take ten more minutes to accept it (RFC 5321
# section 4.5.3.2.6).
TIMES = {"unheard": timedelta(seconds=DATA_SECONDS, minutes=10)}
ACCEPTED_BY = "greatest(data_at, coalesce(sent_at, data_at + %(unheard)s))"
# Characters kept of what the mail server said.
_MOST_SAID = 300

_log = structlog.get_logger(__name__)

Row = TypeVar("Row", Digest, AlertMail)


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


_LOST = Outcome("uncertain", "The worker was lost while it sent.")
READDRESSED = Outcome("pending")
"""The mail has another address since its attempt began."""
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
_FORGOTTEN = """
SELECT m.tenant_id, m.id FROM {table} AS m
 WHERE m.status IN ('pending', 'sending')
   AND NOT EXISTS (SELECT FROM jobs AS j
                    WHERE j.tenant_id = m.tenant_id AND j.kind = %s AND j.dedupe_key = m.id::text
                      AND j.finished_at IS NULL)
 ORDER BY random() LIMIT %s
"""

_HURRY = """
UPDATE jobs SET run_at = clock_timestamp(), ring_at = clock_timestamp()
 WHERE tenant_id = %s AND kind = %s AND finished_at IS NULL AND locked_until IS NULL
   AND run_at > clock_timestamp()
RETURNING id
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


def rows(
    session: Session, model: type[Row], tenant_id: UUID, before: UUID | None, limit: int
) -> Sequence[Row]:
    """Return up to `limit` of a tenant's mails of a kind, newest first, older than `before`."""
    query = select(model).where(model.tenant_id == tenant_id)
    if before is not None:
        query = query.where(model.id < before)
    return session.scalars(query.order_by(model.id.desc()).limit(limit)).all()


@dataclass
class Sending(ABC, Generic[Row]):
    """One step of a mail's job, or an attempt to hand it to the mail server.

    An attempt has two short transactions of its own. The first reads the content, the second
    commits `sending`: the mail may be accepted from then. `kind` is the job's and `template` the
    mail's, `mails` what its link unsubscribes from, `of` the name of the column that says of how
    many things the mail tells. `withdrawn` is why it must not be sent.
    """

    kind: ClassVar[str]
    prefix: ClassVar[str]
    template: ClassVar[str]
    mails: ClassVar[str]
    of: ClassVar[str]
    model: ClassVar[Any]

    sender: Sender
    job: Job
    mail: Row
    tenant: Tenant
    withdrawn: str | None = field(default=None, init=False)

    @classmethod
    def enqueue(cls, session: Session, tenant_id: UUID, mail_id: UUID) -> Job:
        """Enqueue the job of a mail, unless it has an open one."""
        args = {f"{cls.kind}_id": ids.text(cls.prefix, mail_id)}
        return job_queue.enqueue(
            session, tenant_id, kind=cls.kind, args=args, dedupe_key=str(mail_id)
        )

    @classmethod
    def forgotten(cls, session: Session) -> Sequence[tuple[UUID, UUID]]:
        """Return open mails whose job has died, as (tenant id, mail id), of all tenants."""
        query = _FORGOTTEN.format(table=cls.model.__tablename__)
        found = cursor(session).execute(query.encode(), (cls.kind, AT_ONCE))
        return [(row[0], row[1]) for row in found]

    @classmethod
    def hurry(cls, session: Session, tenant_id: UUID) -> None:
        """Make the jobs of a tenant's mails that wait due at once."""
        for (job_id,) in cursor(session).execute(_HURRY, (tenant_id, cls.kind)).fetchall():
            ring_job(session, tenant_id, job_id)

    @classmethod
    def step(
        cls, sender: Sender, session: Session, tenant_id: UUID, job: Job
    ) -> Step | Errand[Outcome]:
        """Do the next step of a mail's job: prepare it, send it, or end it."""
        mail = cls._load(session, tenant_id, job)
        tenant = session.scalars(select(Tenant).where(Tenant.id == tenant_id)).one()
        one = cls(sender, job, mail, tenant)
        if mail.status == "cancelled":
            after_commit(session, partial(sender.count, "cancelled"))
        elif mail.status == "sending":
            # The worker that began it was lost before it could record the answer.
            one._conclude(session, _LOST)
        elif mail.status == "pending" and (gone := one._changed(session)) is not None:
            one._conclude(session, gone)
        if mail.status != "pending":
            return one._step(None)
        if (prepared := one._prepare(session)) is not None:
            return one._step(prepared)
        if tenant.suspended_at:
            return one._step("waiting", _SUSPENDED)
        return Errand(one._talk, one._record)

    @property
    @abstractmethod
    def _address(self) -> str:
        """The recipient's address, as this attempt has it."""

    @abstractmethod
    def _changed(self, session: Session, *, lock: bool = False) -> Outcome | None:
        """Return what a change of the recipient makes of the mail: `cancelled`, or `READDRESSED`.

        With `lock` a further change waits until this transaction has ended.
        """

    def _prepare(self, session: Session) -> str | None:
        """Do what comes before sending; return the job's next cursor, None when all is done."""
        return None

    @abstractmethod
    def _content(self, session: Session) -> tuple[str, Mapping[str, Any], UUID]:
        """Return the mail's subject, what its template shows, and its recipient's nonce."""

    @abstractmethod
    def _begin(self, session: Session) -> bool:
        """Set the mail to `sending`; False when it has ended, or another keeps it back."""

    def _conclude(self, session: Session, outcome: Outcome) -> None:
        """Write an outcome to the mail's row, unless it was cancelled meanwhile; count it."""
        mail = self.mail
        wanted = {**vars(outcome), "tenant": mail.tenant_id, "id": mail.id}
        query = _CONCLUDE.format(table=mail.__tablename__)
        cursor(session).execute(query.encode(), wanted)
        session.refresh(mail)
        _log.info(
            f"{self.kind}_{'refused' if mail.status == 'pending' else mail.status}",
            **self._named(),
            refusals=mail.refusals,
            refusal=mail.refusal,
            why=outcome.why,
        )
        refused = mail.status in ("pending", "content_refused")
        after_commit(session, partial(self.sender.count, "refused" if refused else mail.status))

    @classmethod
    def _load(cls, session: Session, tenant_id: UUID, job: Job) -> Any:
        """Return the job's mail, unlocked: a change of its recipient must not wait for a reader."""
        mail_id = ids.read(cls.prefix, job_rows.args_of(job)[f"{cls.kind}_id"])
        return session.get_one(cls.model, (tenant_id, mail_id), populate_existing=True)

    def _named(self) -> dict[str, str]:
        return {self.kind: ids.text(self.prefix, self.mail.id)}

    def _step(self, after: str | None, wait: timedelta = timedelta(0)) -> Step:
        told = {name: getattr(self.mail, name) for name in ("status", self.of, "refusals")}
        return Step(after, told, wait)

    def _talk(self) -> Outcome:
        """Hand the mail to the server."""
        try:
            self.sender.mailer.deliver(self._write, self._go_ahead)
        except NotAccepted as error:
            return Outcome(
                "pending", str(error), refusal=error.refusal, said=self._kept(error.said)
            )
        except AnswerLost as error:
            return Outcome("uncertain", str(error))
        except Withdrawn:
            _log.info(f"{self.kind}_cancelled", **self._named(), why=self.withdrawn)
            return Outcome("pending")
        except Busy:
            return Outcome("pending", busy=True)
        return Outcome("sent")

    def _write(self) -> Letter:
        settings, tenant_id = self.sender.settings, self.mail.tenant_id
        with self.sender.database.transaction(tenant_id) as session:
            subject, data, nonce = self._content(session)
        subscription = Subscription(tenant_id, nonce)
        return letters.write(
            ids.text(self.prefix, self.mail.id),
            self.template,
            data,
            subject=subject,
            base_url=settings.base_url,
            token=letters.write_token(settings.master_keys, subscription, self.mails),
            sender=settings.mail_from,
            recipient=self._address,
        )

    def _kept(self, said: str | None) -> str | None:
        """Return the server's words without what a mail's row does not keep.

        That is the address, and a link that clears it.
        """
        if said is None:
            return None
        said = re.sub(re.escape(self._address), "(the recipient)", said, flags=re.IGNORECASE)
        return one_line(re.sub(r"/unsubscribe/\S+", "/unsubscribe/…", said), _MOST_SAID)

    def _go_ahead(self) -> bool:
        """Commit that the mail may be accepted from now on; False when it must not be sent."""
        if self.sender.stopping():
            self.withdrawn = "the process is to end"
            return False
        with self.sender.database.transaction(self.mail.tenant_id) as session:
            if not leases.renew(session, self.job):
                self.withdrawn = "the job was taken over"
            elif self._changed(session, lock=True) is not None:
                self.withdrawn = "the address was changed or cleared"
            elif not self._begin(session):
                self.withdrawn = "it was ended, or another was sent lately"
        return self.withdrawn is None

    def _record(self, session: Session, outcome: Outcome) -> Step:
        """Record the outcome: the mail has ended, or is tried again later."""
        was_brief = self.mail.brief
        self.mail = self._load(session, self.mail.tenant_id, self.job)
        if outcome.busy:
            seconds = random.uniform(*_BUSY_SECONDS)  # noqa: S311  # no secret
            return self._step("busy", timedelta(seconds=seconds))
        if outcome.status == "pending" and outcome.why is None:
            return self._step("withdrawn", _WITHDRAWN)
        if outcome.status == "pending":
            return self._refused(session, outcome, was_brief=was_brief)
        self._conclude(session, outcome)
        return self._step(None)

    def _refused(self, session: Session, outcome: Outcome, *, was_brief: bool) -> Step:
        """Retry later: soon if the address has changed, never if it was cleared.

        A later change of the address makes the waiting job due. Content that was refused is sent
        without words soon, and given up when it was without them.
        """
        changed, of_content = self._changed(session, lock=True), outcome.refusal is Refusal.CONTENT
        if changed is not None and changed is not READDRESSED:
            outcome = changed
        elif of_content and was_brief and changed is None:
            outcome = replace(outcome, status="content_refused")
        self._conclude(session, outcome)
        if self.mail.status != "pending":
            return self._step(None)
        if changed is READDRESSED:
            return self._step("readdressed", _AGAIN_SOON)
        if of_content:
            return self._step("without words", _AGAIN_SOON)
        if outcome.refusal is Refusal.RECIPIENT:
            return self._step("recipient refused", _RECIPIENT_REFUSED)
        return self._step("refused", WAITS[min(self.mail.refusals, len(WAITS)) - 1])
