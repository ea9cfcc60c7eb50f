"""Prometheus metrics of this process: requests by route and status, their latency, and the bell."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from app.queue import Bell

REGISTRY = CollectorRegistry()

# A method outside this list is somebody's invention, and each would be a time series.
_METHODS = frozenset(("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"))

_requests = Counter(
    "http_requests", "Requests answered.", ["method", "route", "status"], registry=REGISTRY
)
_latency = Histogram(
    "http_request_duration_seconds",
    "Time from the first line of a request to its answer.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)


class BellCollector(Collector):
    """Reads the bell's counts when somebody asks."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield one counter with a label for each thing that the bell counts."""
        family = CounterMetricFamily(
            "bell", "What the doorbell (Redis) has done.", labels=["event"]
        )
        for event, count in vars(self._bell.counts).items():
            family.add_metric([event], count)
        yield family


def observe(method: str, route: str, status: int, seconds: float) -> None:
    """Count one answered request; `route` is the rule that matched, never the URL."""
    _requests.labels(method if method in _METHODS else "other", route, status).inc()
    _latency.labels(route).observe(seconds)


def exposition(bell: Bell) -> bytes:
    """Return all metrics in Prometheus's text format."""
    of_bell = CollectorRegistry()
    of_bell.register(BellCollector(bell))
    return generate_latest(REGISTRY) + generate_latest(of_bell)
