"""Each minute: free jobs that a clock that was set back, or a planted row, has put off."""

from app.core.jobs import stuck_jobs
from jobs.process.runtime import Runtime


def run(here: Runtime) -> None:
    """Free stuck jobs; the sweep rings those that are due then."""
    with here.database.across_tenants() as session:
        stuck_jobs.free_stuck(session)
