"""Daily retention: create the next partitions, drop those older than the history kept.

Also sums final hourly counts over webhooks.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial

import structlog
from sqlalchemy.orm import Session

from app import clock
from app.core import idempotency, partitions, tenants
from app.core.audit import record_reads
from app.core.delivery import hours
from app.core.digests import alerts
from app.core.jobs import job_rows
from app.core.keys import console_sessions
from app.core.packs import store
from app.core.records import share_links
from app.core.rules import matches
from app.core.traces import traces
from app.database import Database
from app.errors import Unavailable
from jobs.process.runtime import Runtime

_log = structlog.get_logger(__name__)


def run(here: Runtime) -> None:
    """Create the partitions ahead, drop old ones, and delete other expired rows in batches."""
    now = clock.now()
    with here.database.across_tenants() as session:
        made = partitions.make_partitions(session.connection(), now, here.settings.history_days)
        outlived = partitions.outlived(session, now, here.settings.history_days)
    dropped: list[str] = []
    kept: list[str] = []
    for partition in outlived:
        # Each in a transaction of its own; a busy one stays until the next run.
        try:
            with here.database.across_tenants() as session:
                partitions.drop(session, partition)
            dropped.append(partition.name)
        except (partitions.PartitionKept, Unavailable) as error:
            kept.append(partition.name)
            if isinstance(error, Unavailable):
                _log.warning("partition_busy", partition=partition.name)
    with here.database.across_tenants() as session:
        forgotten = idempotency.forget_old(session) + share_links.forget_old(session)
        forgotten += console_sessions.forget_old(session) + record_reads.forget_old(session)
    packs = _in_batches(here.database, store.MOST_AT_ONCE, store.forget_replaced)
    with here.database.across_tenants() as session:
        begins_at = partitions.begins_at(session)
        forgotten += matches.forget_old(session, begins_at) + alerts.forget_old(session, begins_at)
    old_hours = _close_hours(here.database, begins_at)
    forget_jobs = partial(job_rows.forget_old, before=begins_at)
    jobs = _in_batches(here.database, job_rows.AT_ONCE, forget_jobs)
    forget_traces = partial(traces.forget_old, before=begins_at)
    old_traces = _in_batches(here.database, traces.FORGOTTEN_AT_ONCE, forget_traces)
    _log.info(
        "history_pruned",
        made=made,
        dropped=dropped,
        kept=kept,
        forgotten=forgotten,
        packs=packs,
        hours=old_hours,
        jobs=jobs,
        traces=old_traces,
    )


def _close_hours(database: Database, begins_at: datetime) -> int:
    """Sum final hours, delete those from before the history kept; return how many were deleted."""
    with database.across_tenants() as session:
        every = [tenant.id for tenant in tenants.rows(session)]
    gone = 0
    for tenant_id in every:
        with database.transaction(tenant_id) as session:
            hours.close(session, tenant_id)
        forget = partial(hours.forget_old, tenant_id=tenant_id, before=begins_at)
        gone += _in_batches(database, hours.AT_ONCE, forget)
    return gone


def _in_batches(database: Database, at_once: int, forget: Callable[[Session], int]) -> int:
    """Delete batches, a transaction each, until one is not full; return how many were deleted."""
    total = 0
    while True:
        with database.across_tenants() as session:
            gone = forget(session)
        total += gone
        if gone < at_once:
            return total
