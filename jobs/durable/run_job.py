"""Runs durable jobs, step by step, each step in its own transaction."""

import time
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import metrics
from app.core.jobs import leases, steps
from app.core.jobs.steps import Errand, Failed, JobFailed, Step
from app.errors import Unavailable
from app.models import NO_TENANT, Job
from jobs.durable.handlers import KINDS
from jobs.durable.lease_renewal import renewed
from jobs.process.middleware import kind, where
from jobs.process.runtime import Runtime
from jobs.process.shutdown import shutting_down

_log = structlog.get_logger(__name__)

TURN_SECONDS = 5.0


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
    try:
        with here.active_leases.tracking(job):
            step = _step(here, tenant_id, job)
    except Unavailable:
        # Not counted as a crash: the row stays leased, and the job goes on when its lease ends.
        raise
    except _NotOurs:
        result = "not_ours"
        _log.info("job_lease_lost", job=str(job_id))
    except JobFailed as error:
        _fail(here, tenant_id, job, str(error), for_good=True)
    except Exception as error:  # noqa: BLE001  # whatever a step raises is written to its row
        _log.error("job_step_failed", job=str(job_id), error=kind(error), at=where(error))
        _fail(here, tenant_id, job, f"The job failed inside the service ({kind(error)}).")
    else:
        result = "done"
        return isinstance(step, Step) and step.cursor is not None
    finally:
        here.tally.add(metrics.JOB_STEPS, job.kind, result)
    return False


def _step(here: Runtime, tenant_id: UUID, job: Job) -> Step | Failed:
    with _opened(here, tenant_id) as session:
        step = KINDS[job.kind](here)(session, tenant_id, job)
        if not isinstance(step, Errand):
            _write(session, job, step)
    if isinstance(step, Errand):
        step = _run_errand(here, tenant_id, job, step)
    return step


def _run_errand(here: Runtime, tenant_id: UUID, job: Job, errand: Errand[Any]) -> Step | Failed:
    with renewed(here.database, job):
        result = errand.talk()
    with _opened(here, tenant_id) as session:
        step = errand.record(session, result)
        _write(session, job, step)
    return step


def _opened(here: Runtime, tenant_id: UUID) -> AbstractContextManager[Session]:
    """Open a step's transaction: the service's own jobs see all tenants."""
    if tenant_id == NO_TENANT:
        return here.database.across_tenants()
    return here.database.transaction(tenant_id)


def _write(session: Session, job: Job, step: Step | Failed) -> None:
    if isinstance(step, Failed):
        kept = steps.fail(session, job, step.error, for_good=step.for_good)
    else:
        kept = steps.advance(session, job, step)
    if not kept:
        raise _NotOurs


def _fail(here: Runtime, tenant_id: UUID, job: Job, error: str, *, for_good: bool = False) -> None:
    with here.database.transaction(tenant_id) as session:
        steps.fail(session, job, error, for_good=for_good)
