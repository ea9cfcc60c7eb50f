"""What `/metrics` says: the stack's counters and gauges in Prometheus's text format.

Every web process says the same. Without the database there is only the line that says so: a
collector copes with figures that are missing for a while, not with figures that go back.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from app.core.health.gauges import Gauges
from app.lib.metric_registry import Counter, Histogram
from app.metrics import COUNTERS, HISTOGRAMS

# A figure's rows: the values of its labels, and how much.
_Rows = list[tuple[tuple[str, ...], float]]

_PREFIX = "record_service"


def text(
    parts: Mapping[str, bool],
    figures: Iterable[tuple[str, str, float]] | None,
    gauges: Gauges | None,
    unverified: float | None,
) -> bytes:
    """Write everything: which parts are up, and, with the database, counters and gauges.

    `unverified` are the seconds since all audit chains were verified. `figures` are those of
    `app.counters.read`; figures of another release, which this one does not know or labels
    otherwise, are left out.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Written(_parts(parts)))
    if figures is not None:
        registry.register(_Written(_counted(figures)))
    if gauges is not None:
        registry.register(_Written(_gauges(gauges)))
    if unverified is not None:
        registry.register(_Written([_unverified(unverified)]))
    return generate_latest(registry)


class _Written(Collector):
    """Hands over what is written already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families

    def describe(self) -> Iterable[Metric]:
        """Name nothing: each registry lives for one answer."""
        return ()


def _parts(parts: Mapping[str, bool]) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        f"{_PREFIX}_up", "Whether a part of the stack is up.", labels=["part"]
    )
    for part, up in parts.items():
        family.add_metric([part], float(up))
    yield family


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
            # Prometheus's buckets hold what is in the smaller ones as well.
            upto = [
                (str(float(end)), sum(count for bound, count in counts.items() if bound <= end))
                for end in (*histogram.bounds, float("inf"))
            ]
            upto[-1] = ("+Inf", upto[-1][1])
            family.add_metric(key, upto, total.get(key, 0.0))
    return family


def _unverified(seconds: float) -> Metric:
    said = "Since when no run has verified all audit chains."
    return GaugeMetricFamily(f"{_PREFIX}_audit_unverified_seconds", said, seconds)


def _gauges(now: Gauges) -> Iterator[Metric]:
    for name, what, value in (
        ("lanes_due", "Lanes with something to send now.", now.lanes_due),
        ("lanes_overdue", "Lanes with something to send for over a minute.", now.lanes_overdue),
        ("lanes_paused", "Lanes that wait because their receiver failed.", now.lanes_paused),
        ("oldest_due_seconds", "Since when the longest due lane is due.", now.oldest_due),
        ("oldest_job_due_seconds", "Since when the longest due job is due.", now.oldest_job_due),
        ("oldest_digest_seconds", "Since when the oldest open digest is.", now.oldest_digest),
        ("unanchored", "Parts of anchoring that fail.", now.unanchored),
        ("witness_alarms", "Witnesses that saw another log of our name.", now.anchoring_alarms),
        ("unanchored_seconds", "Since when the longest failing one does.", now.oldest_unanchored),
        (
            "checkpoint_waiting_seconds",
            "Since when a signed checkpoint waits for its quorum of witnesses.",
            now.oldest_candidate,
        ),
        ("audit_chains_broken_now", "Tenants whose audit chain is broken.", now.chains_broken),
        ("audit_chains_unknown", "Chains in the log that no tenant has.", now.chains_unknown),
        (
            "logs_unverified",
            "1 while the log does not hold what was published.",
            now.logs_unverified,
        ),
    ):
        yield GaugeMetricFamily(f"{_PREFIX}_{name}", what, value)
    webhooks = GaugeMetricFamily(f"{_PREFIX}_webhooks", "Webhooks there are.", labels=["status"])
    webhooks.add_metric(["enabled"], now.webhooks - now.webhooks_disabled)
    webhooks.add_metric(["disabled"], now.webhooks_disabled)
    yield webhooks
    jobs = GaugeMetricFamily(f"{_PREFIX}_jobs", "Jobs that are open, or dead.", labels=["status"])
    jobs.add_metric(["queued"], now.jobs_queued)
    jobs.add_metric(["running"], now.jobs_running)
    jobs.add_metric(["retrying"], now.jobs_retrying)
    jobs.add_metric(["dead"], now.jobs_dead)
    yield jobs
