"""Wake-ups of workers after the commit: only then can a worker see the row of the message."""

from collections.abc import Iterable
from uuid import UUID

from app.database import Tx, after_commit
from app.queue import Bell, WakeupBatcher


def ring_lanes(tx: Tx, lanes: Iterable[tuple[UUID, UUID]]) -> None:
    """Ring each lane, named by (tenant id, webhook id), once this transaction has committed."""
    rung = list(lanes)
    if rung:
        batcher: WakeupBatcher = tx.info["wakeups"]
        after_commit(tx, lambda: batcher.ring(rung))


def ring_job(tx: Tx, tenant_id: UUID, job_id: UUID) -> None:
    """Ring the worker for one job once this transaction has committed."""
    bell: Bell = tx.info["bell"]
    after_commit(tx, lambda: bell.ring("run_job", (tenant_id, job_id)))
