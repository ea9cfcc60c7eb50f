"""An outbox with the worker's runtime that sends from it."""

from uuid import UUID, uuid4

from jobs.delivery.lane_run import LaneRun
from jobs.process.bulkhead import Permit
from jobs.process.runtime import Runtime
from tests.support.workers.outbox import Outbox


class World(Outbox):
    """One tenant, a worker's runtime, and what a test does with them."""

    def __init__(self, runtime: Runtime, tenant_id: UUID) -> None:
        super().__init__(runtime.database, runtime.settings, tenant_id)
        self.runtime = runtime

    def turn(self, webhook: UUID) -> None:
        """Let a worker send what is due of a webhook."""
        LaneRun(self.runtime, self.tenant_id, webhook).run()

    def has_answered(
        self, webhook: UUID, *, latency_ms: float = 5.0, concurrency: int = 64
    ) -> None:
        """Have a lane know how soon its receiver answers, and how many POSTs it takes at once."""
        self.run(
            "UPDATE lanes SET latency_ms = :latency, concurrency = :most WHERE webhook_id = :id",
            latency=latency_ms,
            most=concurrency,
            id=webhook,
        )

    def fill_bulkhead(self) -> list[Permit]:
        """Have turns of other tenants take all permits."""
        permits = []
        for slow in (True, False):
            while permit := self.runtime.bulkhead.acquire(uuid4(), uuid4(), slow=slow):
                permits.append(permit)
        return permits
