"""The tick that looks who is due a digest, and leaves each such tenant a durable job."""

import time

from app.core.digest import claims
from jobs.runtime import Runtime, runtime

# The next minute's tick goes on; ticks share two threads with the sweep and the jobs.
SECONDS = 10.0


def send_digests() -> None:
    """Look at every tenant with an address, and at digests whose job has died."""
    look(runtime())


def look(here: Runtime) -> None:
    """Do the same with what a process holds."""
    ends = time.monotonic() + SECONDS
    settle = here.settings.digest_settle
    with here.database.across_tenants() as session:
        claims.follow_the_clock(session)
        tenants = claims.due_tenants(session, settle)
        forgotten = claims.forgotten(session)
    for tenant_id, digest_id in forgotten:
        with here.database.transaction(tenant_id) as session:
            claims.enqueue(session, tenant_id, digest_id)
    for tenant_id in tenants:
        if time.monotonic() > ends:
            return
        with here.database.transaction(tenant_id) as session:
            claims.claim(session, tenant_id, settle)
