"""`/metrics`: the stack's counters and gauges in Prometheus's text format.

Every web process gives the same answer. Without the database only gauges that do not need it are
left: Prometheus tolerates missing series, but not counters that decrease.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from app.core.health.parts import Gauge
from app.lib.metric_registry import Counter, Histogram
from app.metrics import COUNTERS, HISTOGRAMS

# A figure's rows: the values of its labels, and how much.
_Rows = list[tuple[tuple[str, ...], float]]

_PREFIX = "record_service"


def text(figures: Iterable[tuple[str, str, float]] | None, gauges: Iterable[Gauge]) -> bytes:
    """Write the counters and histograms of `figures` (if any), and `gauges`.

    `figures` come from `app.counters.read`. Figures of another release, with a name or labels that
    this one does not know, are left out.
    """
    counted = () if figures is None else _counted(figures)
    return generate_latest(_Written([*counted, *map(_gauge, gauges)]))


class _Written(Collector):
    """A collector of metric families that are already built."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


def _gauge(gauge: Gauge) -> Metric:
    family = GaugeMetricFamily(f"{_PREFIX}_{gauge.name}", gauge.text, labels=gauge.labels)
    for labels, value in gauge.values.items():
        family.add_metric(labels, value)
    return family


def _counted(figures: Iterable[tuple[str, str, float]]) -> Iterator[Metric]:
    by_name: dict[str, _Rows] = defaultdict(list)
    for name, labels, value in figures:
        by_name[name].append((tuple(json.loads(labels)), value))
    for counter in COUNTERS:
        yield _counter(counter, by_name[counter.total])
    for histogram in HISTOGRAMS:
        yield _histogram(histogram, by_name[histogram.bucket], by_name[histogram.sum])


def _counter(counter: Counter, rows: _Rows) -> Metric:
    family = CounterMetricFamily(counter.name, counter.help, labels=counter.labels)
    begun = dict.fromkeys(counter.known if counter.labels else ((),), 0.0)
    for labels, value in (begun | dict(rows)).items():
        if len(labels) == len(counter.labels):
            family.add_metric(labels, value)
    return family


def _histogram(histogram: Histogram, buckets: _Rows, sums: _Rows) -> Metric:
    family = HistogramMetricFamily(histogram.name, histogram.help, labels=histogram.labels)
    held: dict[tuple[str, ...], dict[float, float]] = defaultdict(dict)
    for (*labels, bound), count in buckets:
        held[tuple(labels)][float(bound)] = count
    total = dict(sums)
    for key, counts in held.items():
        if len(key) == len(histogram.labels):
            # Prometheus's buckets are cumulative.
            upto = [
                (str(float(end)), sum(count for bound, count in counts.items() if bound <= end))
                for end in (*histogram.bounds, float("inf"))
            ]
            upto[-1] = ("+Inf", upto[-1][1])
            family.add_metric(key, upto, total.get(key, 0.0))
    return family
