"""A worker, and the lines and counts that it writes."""

from typing import Any
from uuid import UUID

from sqlalchemy import text

from app import clock, ids
from app.core.callers import Caller, Role
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.core.webhooks import webhooks
from app.lib.metric_registry import Counter, Histogram
from jobs.delivery.lane_run import LaneRun
from jobs.process.runtime import Runtime
from tests.support.workers.lanes import has_answered

SECRET = "s3cret"


class Observed:
    """One tenant, a worker's runtime, its log lines and its counts."""

    def __init__(self, runtime: Runtime, tenant_id: UUID, lines: list[Any]) -> None:
        self.runtime = runtime
        self.tenant_id = tenant_id
        self._lines = lines

    def webhook(self, url: str, **fields: Any) -> UUID:
        caller = Caller(self.tenant_id, ids.new(), Role.ADMIN, None, "test")
        with self.runtime.database.transaction(self.tenant_id) as session:
            wanted = {"url": url, **fields}
            return webhooks.create(session, caller, self.runtime.settings, wanted)[0].id

    def has_answered(self, webhook: UUID) -> None:
        with self.runtime.database.transaction(self.tenant_id) as session:
            has_answered(session, webhook)

    def emit(self, count: int = 1) -> list[UUID]:
        with self.runtime.database.transaction(self.tenant_id) as session:
            new = NewEvent("finding.created", {"word": SECRET}, clock.now())
            return events.emit(session, self.tenant_id, [new] * count)

    def turn(self, webhook: UUID, passed_on: int = 0) -> None:
        LaneRun(self.runtime, self.tenant_id, webhook, passed_on=passed_on).run()

    def run(self, sql: str) -> None:
        with self.runtime.database.transaction(self.tenant_id) as session:
            session.execute(text(sql))

    def lines(self, event: str = "attempt") -> list[Any]:
        return [line for line in self._lines if line["event"] == event]

    def count(self, counter: Counter, *labels: str) -> float:
        return self.runtime.tally.value(counter, *labels)

    def observed(self, histogram: Histogram, *labels: str) -> float:
        """How many values a histogram has of these labels."""
        figures = self.runtime.tally.figures().items()
        return sum(
            value
            for (name, held), value in figures
            if name == histogram.bucket and held[:-1] == labels
        )
