"""The jobs that this process has leased now, so that a stop is not taken for a death.

A step that is cut off leaves a lease that ends without an outcome, which counts against its job:
the job may be what kills its workers. A process that is told to stop, for a deploy say, may be cut
off while it finishes. So it says first that what becomes of these leases is nobody's fault.
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


class Held:
    """What is leased by this process; shared by its threads."""

    def __init__(self, database: Database) -> None:
        """Hold nothing yet."""
        self._database = database
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}

    @contextmanager
    def holding(self, job: Job) -> Iterator[None]:
        """Hold a job that was claimed until its step has ended, however it ends.

        While the database is away nobody can write an outcome: that is no death either.
        """
        with self._lock:
            self._jobs[id(job)] = job
        try:
            # Claimed while the others were let go, this one was not among them.
            if shutting_down():
                self._let_go([job])
            yield
        except Unavailable:
            self._let_go([job])
            raise
        finally:
            with self._lock:
                del self._jobs[id(job)]

    def let_go(self) -> None:
        """Say of all that is held that the process was told to stop."""
        with self._lock:
            held = list(self._jobs.values())
        if held:
            self._let_go(held)

    def _let_go(self, held: Collection[Job]) -> None:
        try:
            with self._database.across_tenants() as session:
                leases.let_go(session, held)
        except Unavailable as error:
            _log.warning("jobs_not_let_go", count=len(held), error=type(error).__name__)
