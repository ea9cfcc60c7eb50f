"""Metrics in memory: counters and histograms since the process began.

A `Counter` or a `Histogram` is a description; a `Tally` holds the values of all of them for every
thread. Values only grow. An increment costs a lock and a dict lookup; `app/counters.py` stores the
values periodically.
"""

from bisect import bisect_left
from dataclasses import dataclass
from threading import Lock

# A figure's name, as Prometheus has it, and the values of its labels in the order of their names.
Figure = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that only grows; `name` is without the `_total` that Prometheus adds.

    `known` are label values that are shown as 0 before the first time: an alert that looks for a
    growing number does not see one that begins with its first event.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()

    @property
    def total(self) -> str:
        """The name of its figures."""
        return f"{self.name}_total"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often something was how large; `bounds` are the upper ends of its buckets, rising.

    The figures are one for each bucket, that bucket alone, and a sum.
    """

    name: str
    help: str
    bounds: tuple[float, ...]
    labels: tuple[str, ...] = ()

    @property
    def bucket(self) -> str:
        """The name of the buckets' figures; their last label is the bucket's upper end."""
        return f"{self.name}_bucket"

    @property
    def sum(self) -> str:
        """The name of the figures with the sum of all that was observed."""
        return f"{self.name}_sum"

    def bucket_of(self, value: float) -> str:
        """Return the upper end of the bucket that a value falls into, as a label: `0.5`, `+Inf`."""
        index = bisect_left(self.bounds, value)
        return str(float(self.bounds[index])) if index < len(self.bounds) else "+Inf"


class Tally:
    """The figures of one process; shared by its threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._figures: dict[Figure, float] = {}

    def add(self, counter: Counter, *labels: str, count: float = 1) -> None:
        """Count something once, or `count` times; 0 leaves no trace."""
        if count:
            with self._lock:
                self._grow((counter.total, labels), count)

    def observe(self, histogram: Histogram, value: float, *labels: str) -> None:
        """Put one value, never below 0, into its bucket."""
        value = max(value, 0.0)
        bucket = histogram.bucket_of(value)
        with self._lock:
            self._grow((histogram.bucket, (*labels, bucket)), 1)
            self._grow((histogram.sum, labels), value)

    def value(self, counter: Counter, *labels: str) -> float:
        """Return how often something was counted in this process."""
        return self._figures.get((counter.total, labels), 0)

    def figures(self) -> dict[Figure, float]:
        """Return all figures as they are at this moment."""
        with self._lock:
            return dict(self._figures)

    def _grow(self, figure: Figure, count: float) -> None:
        self._figures[figure] = self._figures.get(figure, 0) + count
