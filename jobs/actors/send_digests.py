"""Each minute: enqueue a digest job for each tenant that is due a digest."""

import time
from collections.abc import Sequence
from uuid import UUID

import structlog

from app.core.digests import schedule
from app.errors import Unavailable
from jobs.process.runtime import Runtime

# Time budget; the next tick continues, as ticks share two threads with the sweep and the jobs.
SECONDS = 10.0

_log = structlog.get_logger(__name__)


def run(here: Runtime) -> None:
    """Enqueue due digests, and those whose job has died."""
    began = time.monotonic()
    with here.database.across_tenants() as session:
        schedule.follow_the_clock(session)
        tenants = schedule.due_tenants(session, here.settings.digest_settle)
        forgotten = schedule.forgotten(session)
    _revive(here, forgotten, began + SECONDS / 2)
    _claim(here, tenants, began + SECONDS)


def _revive(here: Runtime, forgotten: Sequence[tuple[UUID, UUID]], ends: float) -> None:
    for tenant_id, digest_id in forgotten:
        if time.monotonic() > ends:
            return
        try:
            with here.database.transaction(tenant_id) as session:
                schedule.enqueue(session, tenant_id, digest_id)
        except Unavailable as error:
            _log.warning("digest_not_resumed", tenant=str(tenant_id), why=str(error))


def _claim(here: Runtime, tenants: Sequence[UUID], ends: float) -> None:
    for tenant_id in tenants:
        if time.monotonic() > ends:
            return
        try:
            with here.database.transaction(tenant_id) as session:
                schedule.claim(session, tenant_id, here.settings.digest_settle)
        except Unavailable as error:
            _log.warning("digest_not_claimed", tenant=str(tenant_id), why=str(error))
