"""The daily tick that has every audit chain verified, by a durable job."""

from app.core.verification import jobs as verification_jobs
from jobs.process.runtime import runtime


def verify_audit() -> None:
    """Ask for a run, unless one is at work."""
    here = runtime()
    with here.database.across_tenants() as session:
        verification_jobs.look(session)
