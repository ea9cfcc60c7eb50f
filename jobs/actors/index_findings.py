"""Every ten seconds: index the words of new findings."""

from app.core.finding_search import indexing
from jobs.process.runtime import Runtime

# Most pieces per tick; the rest waits for the next, and a search reads it unindexed meanwhile.
MOST_PIECES = 80


def run(here: Runtime) -> None:
    """Index findings in pieces; tenants that are behind take turns, a piece each."""
    with here.database.across_tenants() as session:
        below = indexing.floor(session)
    left = MOST_PIECES
    while left > 0:
        with here.database.across_tenants() as session:
            tenants = indexing.behind(session, below, left)
        if not tenants:
            return
        for tenant_id in tenants:
            with here.database.transaction(tenant_id) as session:
                indexing.index_piece(session, here.settings.master_keys, tenant_id, below)
        left -= len(tenants)
