"""The tick that rings whatever is due and was not rung: lanes and jobs."""

from app import metrics
from app.core.delivery import sweeping
from jobs.runtime import runtime


def sweep() -> None:
    """Ring every due lane and job; the flags are ignored, for their messages may be lost."""
    here = runtime()
    with here.database.across_tenants() as session:
        lanes = sweeping.due_lanes(session)
        jobs = sweeping.due_jobs(session)
    here.tally.add(metrics.SWEEPS)
    here.tally.add(metrics.SWEPT, "lane", count=len(lanes))
    here.tally.add(metrics.SWEPT, "job", count=len(jobs))
    here.bell.ring_lanes(lanes, ignore_flags=True)
    here.bell.ring_many("run_job", jobs)
