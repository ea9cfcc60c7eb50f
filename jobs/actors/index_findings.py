"""Every ten seconds: index the words of new findings."""

from uuid import UUID

import structlog

from app import ids
from app.core.finding_search import indexing
from app.errors import Unavailable
from jobs.process.middleware import kind
from jobs.process.runtime import Runtime

_log = structlog.get_logger(__name__)

# Most pieces per tick; the rest waits for the next, and a search reads it unindexed meanwhile.
MOST_PIECES = 80


def run(here: Runtime) -> None:
    """Index findings in pieces; tenants that are behind take turns, a piece each.

    A tenant whose piece fails is left out for the rest of the run, so that the others go on.
    """
    with here.database.across_tenants() as session:
        below = indexing.floor(session)
    left = MOST_PIECES
    failed: list[UUID] = []
    while left > 0:
        with here.database.across_tenants() as session:
            tenants = indexing.behind(session, below, left, failed)
        if not tenants:
            return
        failed += [each for each in tenants if not _index_piece(here, each, below)]
        left -= len(tenants)


def _index_piece(here: Runtime, tenant_id: UUID, below: UUID) -> bool:
    """Index a tenant's next piece; return False if that failed. Raises `Unavailable`."""
    try:
        with here.database.transaction(tenant_id) as session:
            indexing.index_piece(session, here.settings.master_keys, tenant_id, below)
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001  # whatever the tenant's rows hold
        _log.error("findings_not_indexed", tenant_id=ids.text("ten", tenant_id), error=kind(error))
        return False
    return True
