"""Lease renewal (heartbeat) while a job's errand runs: if the process dies, the lease expires."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from app.core.jobs import leases
from app.database import Database
from app.errors import Unavailable
from app.models import Job

_log = structlog.get_logger(__name__)

# A third of the lease: two renewals may fail before another worker takes the job over.
RENEW_SECONDS = leases.LEASE.total_seconds() / 3


@contextmanager
def renewed(database: Database, job: Job, every: float = RENEW_SECONDS) -> Iterator[None]:
    """Renew the lease each `every` seconds until the block ends or the claim is taken over."""
    done = threading.Event()
    keeper = threading.Thread(
        target=_renew, args=(database, job, every, done), name="lease", daemon=True
    )
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()


def _renew(database: Database, job: Job, every: float, done: threading.Event) -> None:
    while not done.wait(every):
        try:
            with database.transaction(job.tenant_id) as session:
                if not leases.renew(session, job):
                    return
        except Unavailable:
            _log.warning("lease_not_renewed", job=str(job.id))
