"""The tick that lets jobs go on which somebody, or a clock that was set back, has put off."""

from app.core.jobs import stuck_jobs
from jobs.process.runtime import Runtime, runtime


def free_stuck_jobs() -> None:
    """Look at every open job; the sweep rings those that are due then."""
    run(runtime())


def run(here: Runtime) -> None:
    """Do the same with what a process holds."""
    with here.database.across_tenants() as session:
        stuck_jobs.free_stuck(session)
