"""The tick that has the heads of audit chains anchored, by a durable job, where some are due.

It also makes up for a daily verification that was missed, or came to nothing.
"""

from app.core.anchoring import heads, monitor
from app.core.verification import daily_state
from app.core.verification import jobs as verification
from jobs.process.runtime import Runtime, runtime


def anchor_audit() -> None:
    """Look whether the log takes in what it got, then at every tenant's chain."""
    run(runtime())


def run(here: Runtime) -> None:
    """Do the same with what a process holds."""
    with here.database.across_tenants() as session:
        monitor.watch_log(session)
        heads.look(session)
        if daily_state.watch(session, here.settings.master_keys):
            verification.look(session)
