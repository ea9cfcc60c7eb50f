"""The tick that looks who is due a digest, and leaves each such tenant a durable job."""

from app.core.digest import claims
from jobs.runtime import Runtime, runtime


def send_digests() -> None:
    """Look at every tenant with an address, and at digests whose job has died."""
    look(runtime())


def look(here: Runtime) -> None:
    """Do the same with what a process holds."""
    settle = here.settings.digest_settle
    with here.database.across_tenants() as session:
        claims.follow_the_clock(session)
        tenants = claims.due_tenants(session, settle)
        forgotten = claims.forgotten(session)
    for tenant_id in tenants:
        with here.database.transaction(tenant_id) as session:
            claims.claim(session, tenant_id, settle)
    for tenant_id, digest_id in forgotten:
        with here.database.transaction(tenant_id) as session:
            claims.enqueue(session, tenant_id, digest_id)
