"""The job leases that this process holds: a shutdown must not count as a worker crash.

A lease that ends without an outcome counts against its job, which may have crashed the worker. So a
process that is told to stop first exempts its leases from that count: it may be killed before its
steps end.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import structlog

from app.core.jobs import leases
from app.database import Database
from app.errors import Unavailable
from app.models import Job
from jobs.process.shutdown import shutting_down

_log = structlog.get_logger(__name__)


class ActiveLeases:
    """The leases of one process; shared by its threads."""

    def __init__(self, database: Database) -> None:
        """Start without leases."""
        self._database = database
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}

    @contextmanager
    def tracking(self, job: Job) -> Iterator[None]:
        """Track a claimed job's lease until its step has ended, with or without an error.

        A database outage prevents writing the outcome, and must not count as a crash either.
        """
        with self._lock:
            self._jobs[id(job)] = job
        try:
            # A lease claimed during `release` was not released by it.
            if shutting_down():
                self._release([job])
            yield
        except Unavailable:
            self._release([job])
            raise
        finally:
            with self._lock:
                del self._jobs[id(job)]

    def release(self) -> None:
        """Release all leases: the process was told to stop."""
        with self._lock:
            held = list(self._jobs.values())
        if held:
            self._release(held)

    def _release(self, held: Collection[Job]) -> None:
        try:
            with self._database.across_tenants() as session:
                leases.release(session, held)
        except Unavailable as error:
            _log.warning("jobs_not_released", count=len(held), error=type(error).__name__)
