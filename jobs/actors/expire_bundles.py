"""The tick that looks whose bundles are due, and leaves each such tenant a durable job."""

from app.core.records import expiry
from jobs.process.runtime import runtime


def expire_bundles() -> None:
    """Look at every tenant that limits how long its bundles are kept."""
    here = runtime()
    with here.database.across_tenants() as session:
        tenants = expiry.tenants_with_retention(session)
    for tenant_id in tenants:
        with here.database.transaction(tenant_id) as session:
            expiry.look(session, tenant_id)
