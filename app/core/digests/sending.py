"""The job that sends one digest: it takes the findings, hands over the mail, and says what came.

    pending ──▶ sending ──▶ sent
       ▲           │ └────▶ uncertain     pending ──▶ cancelled (the address was cleared)
       └───────────┘ refused

`sending`, with `data_at`, is committed before the mail's content leaves (`_Attempt.go_ahead`), and
one attempt alone can do that: the row must be `pending`, and the job still that worker's. Up to
there whatever fails is tried again, as the same digest. From there on nothing is, unless the server
itself said no: a worker that dies, or an answer that never comes, leaves it `uncertain`, and the
next digest, a day later at the earliest, lists the same again.
"""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.digests import content, message, schedule, taking, tokens
from app.core.digests.links import Links
from app.core.digests.tokens import Subscription
from app.core.jobs import job_rows, leases
from app.core.jobs.steps import Errand, Name, Step
from app.database import after_commit, cursor
from app.lib.crypto.sealing import MasterKeys
from app.lib.mail.mailer import AnswerLost, Busy, Letter, Mailer, NotAccepted, Withdrawn
from app.models import Digest, Job, Tenant

# Before each further attempt; the last goes on for ever, for nothing was accepted yet.
WAITS = tuple(timedelta(minutes=minutes) for minutes in (0.5, 2, 10, 30, 60))
_AGAIN_SOON = timedelta(seconds=5)
# How often the digest of a suspended tenant is looked at.
_SUSPENDED = timedelta(minutes=10)
# While others send theirs: who is ready before calls the next. This is for what nobody calls, and
# not all of it comes back at once.
_BUSY_SECONDS = (30.0, 90.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What an attempt came to: the digest's next status, and why, where there is a why.

    `pending` without one: nobody refused anything. `busy`: nothing was begun.
    """

    status: str
    why: str | None = None
    busy: bool = False


@dataclass(frozen=True)
class Sender:
    """What sending needs of the process: the door to the mail server, and short transactions.

    Those of `transaction` see one tenant, those of `across_tenants` all.

    `stopping` says that the process is to end soon: nothing that may take a while is begun.
    `count` is told what came of each attempt, and of digests that end without one.
    """

    mailer: Mailer
    transaction: Callable[[UUID], AbstractContextManager[Session]]
    across_tenants: Callable[[], AbstractContextManager[Session]]
    master_keys: MasterKeys
    links: Links
    address: str
    stopping: Callable[[], bool]
    count: Callable[[str], None]

    def step(self, session: Session, tenant_id: UUID, job: Job) -> Step | Errand[Outcome]:
        """Do what is next for the job's digest: take its findings, send it, or see it ended."""
        digest = _found(session, tenant_id, job)
        tenant = session.scalars(select(Tenant).where(Tenant.id == tenant_id)).one()
        if digest.status == "cancelled":
            self.count_after(session, "cancelled")
        elif digest.status == "sending":
            # Whoever began that is gone, and did not live to hear, or to write, the answer.
            self.conclude(
                session, digest, Outcome("uncertain", "The worker was lost while it sent.")
            )
        elif digest.status == "pending" and tenant.digest_series != digest.series:
            self.conclude(session, digest, _CLEARED)
        if digest.status != "pending":
            return _done(digest)
        if digest.findings is None:
            taken = taking.take(session, digest, job.cursor)
            if taken == taking.TAKEN and not self.mailer.ready():
                return _busy(digest)
            return Step(taken, _progress(digest))
        wait = _SUSPENDED if tenant.suspended_at else _until_free(session, digest)
        if wait is not None:
            return Step("waiting", _progress(digest), wait)
        address = tenant.notification_email
        assert address is not None  # noqa: S101  # a series lasts as long as there is an address
        subscription = Subscription.of(tenant_id, address, tenant.address_nonce)
        return _Attempt(self, job, digest, tenant.name, address, subscription).errand()

    def next_waiting(self) -> Name | None:
        """Return the job of a digest that found others sending, now that somebody is ready."""
        if not self.mailer.ready():
            return None
        with self.across_tenants() as session:
            return schedule.next_waiting(session)

    def conclude(self, session: Session, digest: Digest, outcome: Outcome) -> None:
        """Write an outcome to the digest's row, and count it."""
        _conclude(session, digest, outcome)
        self.count_after(session, "refused" if digest.status == "pending" else digest.status)

    def count_after(self, session: Session, outcome: str) -> None:
        """Count an outcome once it is committed."""
        after_commit(session, partial(self.count, outcome))


class _Attempt:
    """One attempt to hand a digest to the mail server, outside any transaction but two of its own.

    The first reads what the digest lists, the second says that it may be accepted from now on.
    """

    def __init__(
        self,
        sender: Sender,
        job: Job,
        digest: Digest,
        name: str,
        address: str,
        subscription: Subscription,
    ) -> None:
        self._sender = sender
        self._job = job
        self._digest = digest
        self._name = name
        self._address = address
        self._subscription = subscription
        # Why `go_ahead` said no, once it has.
        self._no: str | None = None

    def errand(self) -> Errand[Outcome]:
        """Return the attempt as a job's errand."""
        return Errand(self._talk, self._record)

    def _talk(self) -> Outcome:
        try:
            self._sender.mailer.deliver(self._letter, self.go_ahead)
        except NotAccepted as error:
            return Outcome("pending", str(error))
        except AnswerLost as error:
            return Outcome("uncertain", str(error))
        except Withdrawn:
            _log.info("digest_withdrawn", digest=ids.text("dig", self._digest.id), why=self._no)
            return Outcome("pending")
        except Busy:
            return Outcome("pending", busy=True)
        return Outcome("sent")

    def _letter(self) -> Letter:
        sender, digest = self._sender, self._digest
        with sender.transaction(digest.tenant_id) as session:
            read = content.read(session, digest.tenant_id, self._name, digest.id)
        return message.write(
            digest.id,
            read,
            sender.links,
            tokens.write(sender.master_keys, self._subscription),
            sender=sender.address,
            recipient=self._address,
        )

    def go_ahead(self) -> bool:
        """Commit that the mail may be accepted from now on; False when it must not be sent."""
        if self._sender.stopping():
            self._no = "the process is to end"
        else:
            with self._sender.transaction(self._digest.tenant_id) as session:
                self._no = self._begin(session)
        return self._no is None

    def _begin(self, session: Session) -> str | None:
        """Write that it is being sent; return why not, if it must not be."""
        digest = self._digest
        address, series, nonce = _address_now(session, digest)
        if series != digest.series or address is None or self._is_another(address, nonce):
            return "the address was changed or cleared"
        if not leases.renew(session, self._job):
            return "the job was taken over"
        wanted = {"tenant": digest.tenant_id, "id": digest.id, **schedule.TIMES}
        begun = cursor(session).execute(_BEGIN.encode(), wanted)
        return None if begun.rowcount == 1 else "it was ended, or another was sent within a day"

    def _is_another(self, address: str, nonce: UUID | None) -> bool:
        return Subscription.of(self._digest.tenant_id, address, nonce) != self._subscription

    def _record(self, session: Session, outcome: Outcome) -> Step:
        digest = _found(session, self._digest.tenant_id, self._job)
        if outcome.busy:
            return _busy(digest)
        return replace(self._ended(session, digest, outcome), then=self._sender.next_waiting)

    def _ended(self, session: Session, digest: Digest, outcome: Outcome) -> Step:
        if outcome.status == "pending" and outcome.why is None:
            return Step("given back", _progress(digest), _AGAIN_SOON)
        if outcome.status == "pending":
            return self._refused(session, digest, outcome)
        self._sender.conclude(session, digest, outcome)
        return _done(digest)

    def _refused(self, session: Session, digest: Digest, outcome: Outcome) -> Step:
        """Try again later; at once where the address is another by now, never where it was cleared.

        Whoever changes it from here on finds the job waiting, and lets it hurry.
        """
        address, series, nonce = _address_now(session, digest)
        if series != digest.series:
            outcome = _CLEARED
        self._sender.conclude(session, digest, outcome)
        if digest.status != "pending":
            return _done(digest)
        if address is not None and self._is_another(address, nonce):
            return Step("readdressed", _progress(digest), _AGAIN_SOON)
        return Step("refused", _progress(digest), WAITS[min(digest.refusals, len(WAITS)) - 1])


_CLEARED = Outcome("cancelled", "The address was cleared.")

# Whoever sets or clears the address waits for this, or this for them.
_LOCK_TENANT = """
SELECT notification_email, digest_series, address_nonce FROM tenants
 WHERE id = %s FOR NO KEY UPDATE
"""
# A day after the last that may have been accepted: whoever connects before that does so in vain.
_FREE = f"""
SELECT max({schedule.ACCEPTED_BY}) + interval '24 hours' - clock_timestamp() FROM digests
 WHERE tenant_id = %(tenant)s AND id <> %(id)s AND {schedule.KEEPS_BACK}
"""
_BEGIN = f"""
UPDATE digests SET status = 'sending', data_at = clock_timestamp()
 WHERE tenant_id = %(tenant)s AND id = %(id)s AND status = 'pending'
   AND NOT EXISTS (SELECT FROM digests
                    WHERE tenant_id = %(tenant)s AND id <> %(id)s AND {schedule.KEEPS_BACK})
"""
_CONCLUDE = """
UPDATE digests
   SET status = %(status)s, error = %(why)s,
       data_at = CASE WHEN %(status)s IN ('sent', 'uncertain') THEN data_at END,
       sent_at = CASE WHEN %(status)s = 'sent' THEN clock_timestamp() END,
       refusals = refusals + CASE WHEN %(status)s = 'pending' THEN 1 ELSE 0 END
 WHERE tenant_id = %(tenant)s AND id = %(id)s AND status IN ('pending', 'sending')
"""


def _address_now(session: Session, digest: Digest) -> tuple[str | None, UUID | None, UUID | None]:
    """Return the tenant's address, series and nonce, which stay so until the transaction ends."""
    row = cursor(session).execute(_LOCK_TENANT, (digest.tenant_id,)).fetchone()
    assert row is not None  # noqa: S101  # a digest refers to its tenant
    return row[0], row[1], row[2]


def _until_free(session: Session, digest: Digest) -> timedelta | None:
    """Return for how long another mail of the tenant keeps this one back; None: not at all."""
    wanted = {"tenant": digest.tenant_id, "id": digest.id, **schedule.TIMES}
    row = cursor(session).execute(_FREE.encode(), wanted).fetchone()
    return None if row is None else row[0]


def _conclude(session: Session, digest: Digest, outcome: Outcome) -> None:
    """Write an outcome to the digest's row, unless it was cancelled meanwhile: that is its end.

    Whose job it is not by now is undone with it.
    """
    wanted = {"status": outcome.status, "why": outcome.why}
    cursor(session).execute(_CONCLUDE, {**wanted, "tenant": digest.tenant_id, "id": digest.id})
    session.refresh(digest)
    _log.info(
        "digest_refused" if digest.status == "pending" else f"digest_{digest.status}",
        digest=ids.text("dig", digest.id),
        findings=digest.findings,
        refusals=digest.refusals,
        why=outcome.why,
    )


def _found(session: Session, tenant_id: UUID, job: Job) -> Digest:
    """Return the job's digest, unlocked: whoever clears the address must not wait for a reading."""
    digest_id = ids.parse("dig", job_rows.args_of(job)["digest_id"])
    query = select(Digest).where(Digest.tenant_id == tenant_id, Digest.id == digest_id)
    return session.scalars(query).one()


def _done(digest: Digest) -> Step:
    return Step(None, _progress(digest))


def _busy(digest: Digest) -> Step:
    """Wait to be called by who is sending now; if nobody calls, look again."""
    seconds = random.uniform(*_BUSY_SECONDS)  # noqa: S311  # no secret
    return Step(schedule.BUSY, _progress(digest), timedelta(seconds=seconds))


def _progress(digest: Digest) -> dict[str, Any]:
    """Tell in the job how far its digest has come."""
    return {"status": digest.status, "findings": digest.findings, "refusals": digest.refusals}
