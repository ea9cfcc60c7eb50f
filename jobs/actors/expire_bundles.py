"""Each five minutes: enqueue the expiry of bundles for each tenant that limits their age."""

from app.core.records import expiry
from jobs.process.runtime import runtime


def expire_bundles() -> None:
    """Enqueue a job for each tenant with expired bundles."""
    here = runtime()
    with here.database.across_tenants() as session:
        tenants = expiry.tenants_with_retention(session)
    for tenant_id in tenants:
        with here.database.transaction(tenant_id) as session:
            expiry.enqueue_due(session, tenant_id)
