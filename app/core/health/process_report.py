"""Reports of a process's release, memory and connections, which every web process can show."""

from app import heartbeats
from app.database import Database
from app.lib.repeater import Repeater
from app.queue import Bell
from app.settings import Process

_LAST_SECONDS = 1.0


class ProcessReporter:
    """Reports one process every five seconds; one a process."""

    def __init__(self, database: Database, bell: Bell, role: Process) -> None:
        """Set up the report; `role` is the process's role."""
        self._database = database
        self._bell = bell
        self._role = role
        self._thread = Repeater(
            "process-report", self.report, heartbeats.EVERY_SECONDS, failed="process_not_reported"
        )

    def begin(self) -> None:
        """Start reporting; call it again after a fork."""
        self._thread.begin()

    def report(self) -> None:
        """Report now; does nothing while Redis is unavailable."""
        pool = self._database.pool_use()
        self._bell.report(
            heartbeats.this_process(self._role, pool_size=pool.size, pool_in_use=pool.most_in_use)
        )

    def close(self) -> None:
        """Stop; waits up to a second for a report in progress."""
        self._thread.close(_LAST_SECONDS)
