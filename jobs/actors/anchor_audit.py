"""Each ten minutes: enqueue the anchoring of audit chain heads, and a missed daily verification."""

from app.core.anchoring import heads, monitor
from app.core.verification import daily
from app.core.verification import jobs as verification
from jobs.process.runtime import Runtime


def run(here: Runtime) -> None:
    """Check that the log integrates its leaves, then every tenant's chain head."""
    with here.database.across_tenants() as session:
        monitor.watch_log(session)
        heads.enqueue_due(session)
        if daily.watch(session, here.settings.master_keys):
            verification.enqueue_daily(session)
