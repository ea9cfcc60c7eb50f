"""The daily tick that has every audit chain verified, by a durable job."""

from app.core.audit.verification import jobs
from jobs.runtime import runtime


def verify_audit() -> None:
    """Ask for a run, unless one is at work."""
    here = runtime()
    with here.database.across_tenants() as session:
        jobs.look(session)
