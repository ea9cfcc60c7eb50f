"""An outbox with the worker's runtime that sends from it."""

from typing import Any
from uuid import UUID

from jobs.delivery.lane_run import LaneRun
from jobs.process.runtime import Runtime
from tests.support.workers.lanes import has_answered
from tests.support.workers.outbox import Outbox


class World(Outbox):
    """One tenant, a worker's runtime, and what a test does with them."""

    def __init__(self, runtime: Runtime, tenant_id: UUID) -> None:
        super().__init__(runtime.database, runtime.settings, tenant_id)
        self.runtime = runtime

    def turn(self, webhook: UUID, *, passed_on: int = 0) -> None:
        """Let a worker send what is due of a webhook."""
        LaneRun(self.runtime, self.tenant_id, webhook, passed_on=passed_on).run()

    def has_answered(self, webhook: UUID, **known: Any) -> None:
        """Have the webhook's lane know its receiver."""
        with self.database.transaction(self.tenant_id) as session:
            has_answered(session, webhook, **known)
