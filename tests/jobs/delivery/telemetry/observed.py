"""A worker, and the lines and counts that it writes."""

from typing import Any
from uuid import UUID

from app.lib.metric_registry import Counter, Histogram
from jobs.process.runtime import Runtime
from tests.support.workers.worlds import World

SECRET = "s3cret"


class Observed(World):
    """One tenant, a worker's runtime, its log lines and its counts."""

    def __init__(self, runtime: Runtime, tenant_id: UUID, lines: list[Any]) -> None:
        super().__init__(runtime, tenant_id)
        self._lines = lines

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
