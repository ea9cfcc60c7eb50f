"""Daily: enqueue the verification of every audit chain."""

from app.core.verification import jobs as verification_jobs
from jobs.process.runtime import runtime


def verify_audit() -> None:
    """Enqueue a verification, unless one is open."""
    here = runtime()
    with here.database.across_tenants() as session:
        verification_jobs.enqueue_daily(session)
