"""Reports of a process's release, memory and connections, which every web process can show."""

from app import heartbeats
from app.database import Database
from app.lib.repeater import Repeater
from app.queue import Bell
from app.settings import Process

# At the process's end, for a report in progress.
LAST_SECONDS = 1.0


def of(database: Database, bell: Bell, role: Process) -> Repeater:
    """Return the report of a process, which has one; begin it again after a fork.

    Each five seconds; it does nothing while Redis is unavailable.
    """

    def report() -> None:
        pool = database.pool_use()
        bell.report(
            heartbeats.this_process(role, pool_size=pool.size, pool_in_use=pool.most_in_use)
        )

    name, failed = "process-report", "process_not_reported"
    return Repeater(name, report, heartbeats.EVERY_SECONDS, failed=failed)
