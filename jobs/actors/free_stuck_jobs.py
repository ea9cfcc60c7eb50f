"""Each minute: free jobs put off too far, by a clock that was set back or by a forged row."""

from app.core.jobs import stuck_jobs
from jobs.process.runtime import Runtime


def run(here: Runtime) -> None:
    """Free stuck jobs; the sweep then rings those that are due."""
    with here.database.across_tenants() as session:
        stuck_jobs.free_stuck(session)
