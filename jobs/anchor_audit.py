"""The tick that has the heads of audit chains anchored, by a durable job, where some are due."""

from app.core.anchoring import heads, watching
from jobs.runtime import Runtime, runtime


def anchor_audit() -> None:
    """Look how the last run went, then at every tenant's chain."""
    look(runtime())


def look(here: Runtime) -> None:
    """Do the same with what a process holds."""
    with here.database.across_tenants() as session:
        watching.watch(session)
        heads.look(session)
