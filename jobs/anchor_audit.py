"""The tick that has the heads of audit chains anchored, by a durable job, where some are due."""

from app.core.anchoring import heads
from jobs.runtime import runtime


def anchor_audit() -> None:
    """Look at every tenant's chain."""
    here = runtime()
    with here.database.across_tenants() as session:
        heads.look(session)
