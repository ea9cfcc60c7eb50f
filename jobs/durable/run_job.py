"""Runs durable jobs, step by step, each step in its own transaction."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids, metrics
from app.core.anchoring import cosigning, heads, timestamping
from app.core.anchoring.cosigning import Cosigner
from app.core.anchoring.timestamping import Authority, Stamper
from app.core.audit import chain
from app.core.blobs.reading import at_once
from app.core.callers import SYSTEM
from app.core.delivery.lanes.lanes import Lane
from app.core.digests.alerts import AlertSending
from app.core.digests.digest_mail import DigestSending
from app.core.digests.sending import Sender
from app.core.erasure import archiving, erasing, moving
from app.core.exports import building as exporting
from app.core.jobs import leases, steps
from app.core.jobs.steps import Errand, Failed, JobFailed, Step
from app.core.log import history
from app.core.packs import subjects
from app.core.packs.building import Builder
from app.core.records import expiry, finding_expiry
from app.core.replay import bulk_replay, send_now
from app.core.rules import scanning
from app.core.rules.scanning import Scanner
from app.core.verification import daily as verification
from app.core.webhooks import receiver_check
from app.core.webhooks.receiver_check import Checker
from app.database import Database
from app.errors import AuditChainBroken, Unavailable
from app.ledger.hash_chain import Outcome
from app.lib.outbound.client import Answer
from app.models import NO_TENANT, Job
from jobs.process.middleware import kind, shutting_down, where
from jobs.process.runtime import Runtime

Work: TypeAlias = Callable[[Session, UUID, Job], Step | Failed | Errand[Any]]


def _sender(here: Runtime) -> Sender:
    return Sender(
        here.database,
        here.settings,
        here.mailer,
        stopping=shutting_down,
        count=lambda outcome: here.tally.add(metrics.DIGESTS, outcome),
    )


def _send(
    here: Runtime, lane: Lane, url: str, body: bytes, headers: dict[str, str]
) -> Answer | None:
    """Send one request to a lane's receiver, under a permit of a slow lane; None without one."""
    permit = here.bulkhead.acquire(lane.tenant_id, lane.webhook_id, slow=True)
    if permit is None:
        return None
    try:
        return here.outbound.send(url, body, headers)
    finally:
        here.bulkhead.release(permit)


# Each binds the step function to the services of the process that it needs.
KINDS: Mapping[str, Callable[[Runtime], Work]] = {
    bulk_replay.KIND: lambda _: bulk_replay.step,
    send_now.KIND: lambda _: send_now.step,
    receiver_check.KIND: lambda here: Checker(partial(_send, here), here.settings.master_keys).step,
    expiry.KIND: lambda _: expiry.step,
    finding_expiry.KIND: lambda _: finding_expiry.step,
    DigestSending.kind: lambda here: partial(DigestSending.step, _sender(here)),
    AlertSending.kind: lambda here: partial(AlertSending.step, _sender(here)),
    heads.KIND: lambda here: partial(heads.step, here.settings.master_keys),
    subjects.RECORD: lambda here: Builder(here.database, here.settings, subjects.find).step,
    exporting.KIND: lambda here: exporting.Builder(here.database, here.settings).step,
    subjects.SESSION: lambda here: Builder(here.database, here.settings, subjects.find).step,
    timestamping.KIND: lambda here: Stamper(here.authorities, Authority.of(here.settings)).step,
    verification.KIND: lambda here: partial(verification.job_step, here.verifier),
    archiving.KIND: lambda here: partial(archiving.step, here.blobs, here.settings.master_keys),
    erasing.KIND: lambda here: partial(erasing.step, here.blobs),
    erasing.SWEEP: lambda here: partial(erasing.sweep, here.database, here.blobs),
    moving.KIND: lambda here: partial(moving.step, here.blobs),
    scanning.TEST: lambda here: Scanner(here.evaluators, here.settings.master_keys).test,
    scanning.BACKFILL: lambda here: Scanner(here.evaluators, here.settings.master_keys).backfill,
    history.KIND: lambda _: history.tell,
    cosigning.KIND: lambda here: Cosigner(here.authorities, here.settings.witness_policy).step,
}


_log = structlog.get_logger(__name__)

TURN_SECONDS = 5.0
# A third of the lease: two renewals may fail before another worker takes the job over.
RENEW_SECONDS = leases.LEASE.total_seconds() / 3


class _NotOurs(Exception):
    """The job was cancelled or taken over while the step ran: roll back the step's effect."""


def work_on(here: Runtime, tenant_id: UUID, job_id: UUID) -> None:
    """Run steps of a job until none is due or the time for one job ends."""
    until = time.monotonic() + TURN_SECONDS
    while _one_step(here, tenant_id, job_id) and not shutting_down():
        if time.monotonic() > until:
            here.bell.ring("run_job", (tenant_id, job_id))
            return


def _one_step(here: Runtime, tenant_id: UUID, job_id: UUID) -> bool:
    """Run one step if the job is due; say whether it may have another."""
    with here.database.across_tenants() as session:
        job = leases.claim(session, tenant_id, job_id)
    if job is None:
        return False
    result = "failed"

    def fail(error: str, *, for_good: bool = False) -> None:
        with here.database.transaction(tenant_id) as session:
            _failed(session, job, error, for_good=for_good)

    try:
        step = here.fetching(partial(_begin, here, tenant_id, job))
        if isinstance(step, Errand):
            step = _run_errand(here, tenant_id, job, step)
    except Unavailable:
        # No crash of the worker. The job goes on when its lease ends.
        with suppress(Unavailable), here.database.across_tenants() as session:
            leases.release(session, job)
        raise
    except _NotOurs:
        result = "not_ours"
        _log.info("job_lease_lost", job=str(job_id))
    except JobFailed as error:
        fail(str(error), for_good=True)
    except Exception as error:  # noqa: BLE001  # whatever a step raises is written to its row
        _log.error("job_step_failed", job=str(job_id), error=kind(error), at=where(error))
        fail(f"The job failed inside the service ({kind(error)}).")
    else:
        result = "done"
        return isinstance(step, Step) and step.cursor is not None
    finally:
        here.tally.add(metrics.JOB_STEPS, job.kind, result)
    return False


def _begin(here: Runtime, tenant_id: UUID, job: Job) -> Step | Failed | Errand[Any]:
    with _opened(here, tenant_id) as session:
        step = KINDS[job.kind](here)(session, tenant_id, job)
        if not isinstance(step, Errand):
            _write(session, job, step)
        return step


def _run_errand(here: Runtime, tenant_id: UUID, job: Job, errand: Errand[Any]) -> Step | Failed:
    with renewed(here.database, job), at_once(here.blobs):
        result = errand.talk()
    with _opened(here, tenant_id) as session:
        step = errand.record(session, result)
        _write(session, job, step)
    return step


def _opened(here: Runtime, tenant_id: UUID) -> AbstractContextManager[Session]:
    """Open a step's transaction: the service's own jobs see all tenants."""
    own = tenant_id == NO_TENANT
    return here.database.across_tenants() if own else here.database.transaction(tenant_id)


def _write(session: Session, job: Job, step: Step | Failed) -> None:
    if isinstance(step, Failed):
        kept = _failed(session, job, step.error, for_good=step.for_good)
    else:
        kept = steps.advance(session, job, step)
        if kept and step.stopped is not None:
            _audit(session, job, "stop", Outcome.SUCCESS)
    if not kept:
        raise _NotOurs


def _failed(session: Session, job: Job, error: str, *, for_good: bool) -> bool:
    kept = steps.fail(session, job, error, for_good=for_good)
    if kept and steps.is_last(job, for_good=for_good):
        _audit(session, job, "fail", Outcome.FAILED)
    return kept


def _audit(session: Session, job: Job, verb: str, outcome: Outcome) -> None:
    """Append that the service stopped a tenant's job, or gave it up.

    A verification that found a break is told otherwise. A chain that takes no entry keeps no job
    from its end: nothing is undone by that, and `audit_chain_broken` tells it.
    """
    if job.tenant_id == NO_TENANT or job.kind == verification.KIND:
        return
    target, details = ("job", ids.text("job", job.id)), {"kind": job.kind}
    try:
        chain.append(
            session,
            job.tenant_id,
            SYSTEM,
            f"job.{verb}",
            target=target,
            details=details,
            outcome=outcome,
        )
    except AuditChainBroken as error:
        _log.critical("audit_chain_broken", job=str(job.id), **error.members)


@contextmanager
def renewed(database: Database, job: Job, every: float = RENEW_SECONDS) -> Iterator[None]:
    """Renew the lease each `every` seconds until the block ends or the claim is taken over."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(every):
            try:
                with database.transaction(job.tenant_id) as session:
                    if not leases.renew(session, job):
                        return
            except Unavailable:
                _log.warning("lease_not_renewed", job=str(job.id))

    keeper = threading.Thread(target=renew, name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()
