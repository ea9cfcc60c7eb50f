"""Short periodic actors, each named as in the timetable."""

import time
from contextlib import suppress

import structlog

from app.core.jobs import stuck_jobs
from app.core.master_keys import key_registry, resealing, status
from app.core.records import expiry
from app.core.verification import jobs as verification_jobs
from app.errors import Conflict, LogHalted
from jobs.process.runtime import Runtime

_log = structlog.get_logger(__name__)

INTEGRATE_SECONDS = 5.0


def integrate(here: Runtime) -> None:
    """Each second while leaves wait: integrate them into the log, and publish it.

    Logs an alarm when the log is halted.
    """
    try:
        more = here.log.tick(time.monotonic() + INTEGRATE_SECONDS)
    except LogHalted as error:
        _log.critical("log_halted", problem=error.slug, detail=error.detail)
        return
    if more:
        here.bell.ring("integrate", ())


def check_master_keys(here: Runtime) -> None:
    """Each minute: log an alarm if this worker lacks a master key that is in use."""
    with here.database.across_tenants() as session:
        missing = key_registry.missing(session, here.settings.master_keys)
    if missing:
        _log.critical(
            "master_key_missing", missing=missing, detail=key_registry.say_missing(missing)
        )


def reseal(here: Runtime) -> None:
    """Each hour: seal anew what an older key sealed, once no process has that in front."""
    keys = here.settings.master_keys
    with here.database.across_tenants() as session:
        if not key_registry.older(session, keys):
            return
    with suppress(Conflict):
        resealing.reseal(here.database, keys)
        # It also notes which keys nothing is under any more.
        status.read(here.database, keys)


def free_stuck_jobs(here: Runtime) -> None:
    """Each minute: free jobs that are due too late; the sweep then rings those that are due."""
    with here.database.across_tenants() as session:
        stuck_jobs.free_stuck(session)


def expire_bundles(here: Runtime) -> None:
    """Each five minutes: enqueue a job for each tenant with expired bundles."""
    with here.database.across_tenants() as session:
        tenants = expiry.tenants_with_retention(session)
    for tenant_id in tenants:
        with here.database.transaction(tenant_id) as session:
            expiry.enqueue_due(session, tenant_id)


def verify_audit(here: Runtime) -> None:
    """Daily: enqueue the verification of every audit chain, unless one is open."""
    with here.database.across_tenants() as session:
        verification_jobs.enqueue_daily(session)
