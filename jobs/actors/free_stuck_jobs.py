"""Each minute: free jobs that a clock that was set back, or a planted row, has put off."""

from app.core.jobs import stuck_jobs
from jobs.process.runtime import Runtime, runtime


def free_stuck_jobs() -> None:
    """Free stuck jobs; the sweep rings those that are due then."""
    run(runtime())


def run(here: Runtime) -> None:
    """Do the same with a given runtime."""
    with here.database.across_tenants() as session:
        stuck_jobs.free_stuck(session)
