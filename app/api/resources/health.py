"""Liveness, readiness and metrics, for operators and their tools."""

import hmac
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from flask import Response, abort, request
from marshmallow import fields as plain
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from app import counters
from app.api.http.answers import answer, encode
from app.api.http.auth import probed, public
from app.api.http.routes import Routes
from app.api.http.services import services
from app.core.health import database_state, gauges, probes
from app.core.health.parts import Gauge, Part
from app.errors import Unauthenticated, Unavailable
from app.lib.gateway.gateway import PROBE_SECONDS
from app.lib.metric_registry import Counter, Histogram
from app.metrics import COUNTERS, HISTOGRAMS
from app.models import NO_TENANT
from app.schemas import fields
from app.schemas.schema import AnswerSchema

blp = Routes("system", __name__, description="Health and metrics, for operators.")

# A figure's rows: the values of its labels, and how much.
_Rows = list[tuple[tuple[str, ...], float]]

# The others have figures of their own.
_WITH_UP = ("database", "database_writes", "redis", "worker", "scheduler")


class AliveSchema(AnswerSchema):
    """Liveness of the process."""

    status = fields.Text(10, example="ok")


class ReadinessSchema(AnswerSchema):
    """Whether requests can be served, and which parts are degraded."""

    status = fields.Text(20, example="ready")
    degraded = fields.Items(fields.Text(20), max_items=20)
    parts = plain.Dict(keys=plain.String(), values=plain.String())


@blp.serves("GET /healthz", probed, AliveSchema)
def healthz() -> dict[str, Any]:
    """Check that the process answers."""
    return {"status": "ok"}


@blp.serves("GET /readyz", probed, ReadinessSchema, also={503: ReadinessSchema})
def readyz() -> Response:
    """Check whether requests can be served.

    Only the database is needed for that. `degraded` lists the other parts that fail.
    A standby is not the database: where it answers alone, the answer is 503.
    `database_writes`: the database answers reads and refuses writes, and its part says why: its
    disk is full, or it is set read-only. Reads are answered, each request that
    writes is 503. Without `redis`, `worker` or `scheduler` requests are accepted and stored, and
    their effects wait.
    `master_keys`: MASTER_KEYS lacks a key that something may be sealed under. `log`: the
    transparency log signs nothing, and its part says why (`log-rolled-back`, …); it is also
    `log-damaged` when damaged log data was read, which `audit` names. `anchoring`: chain heads or
    checkpoints of the log are not anchored as they should be, and its part says since when, by whom
    and why; after an `ALARM` see docs/operations.md. `audit`: an audit chain was found broken and
    has not been verified since, or the daily verification of all chains has not succeeded for more
    than a day. `mail`: digests wait because no mail server is set, because it refuses the sender or
    the sign-in, or for two hours; or it refused the content of digests, also without the findings'
    words. A refused recipient is its tenant's to mend, and is not among these.

    `database`, `redis`, `worker` and `scheduler` are checked on each request. The other states are
    at most 15 seconds old; each is `unknown`, with its age, if it cannot be renewed.

    What is not known within two seconds is not waited for: the answer is then 503, `database`
    being `unknown`.
    """
    parts = states()
    ready = parts[0].is_ok
    body: dict[str, Any] = {
        "status": "ready" if ready else "unavailable",
        "degraded": probes.degraded(parts),
        "parts": probes.texts(parts),
    }
    return answer(body, 200 if ready else 503, {} if ready else {"Retry-After": "2"})


def not_in_time(_environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a probe whose view was not done in time, such as beside a database that stalls."""
    unknown = f"unknown: not known within {PROBE_SECONDS:g} s"
    body = {"status": "unavailable", "degraded": [], "parts": {"database": unknown}}
    start(
        "503 Service Unavailable",
        [("Content-Type", "application/json"), ("Cache-Control", "no-store"), ("Retry-After", "2")],
    )
    return [encode(body)]


def states() -> list[Part]:
    """Return every part, the database first."""
    here = services()
    database = database_state.presence(here.database)
    kept = here.readiness.parts() if database.is_ok else here.readiness.unknown()
    return [database, *probes.redis_and_roles(here.bell.presence(), here.bell.trouble), *kept]


@blp.serves(
    "GET /metrics",
    public,
    {"type": "string"},
    errors=(401, 404),
    content_type="text/plain",
)
def read_metrics() -> Response:
    """Read the metrics of the whole stack, in Prometheus's text format.

    Every web process returns the same figures: scrape one of them, or do not sum over several.
    Needs `Authorization: Bearer` with the operator's METRICS_TOKEN; 404 where none is set.
    """
    token = services().settings.metrics_token
    if token is None:
        abort(404)
    sent = request.headers.get("Authorization", "")
    if not hmac.compare_digest(sent.encode(), f"Bearer {token}".encode()):
        raise Unauthenticated("Send Authorization: Bearer with the METRICS_TOKEN.")
    return Response(_metrics(), content_type=CONTENT_TYPE_LATEST)


def _metrics() -> bytes:
    """Return the metrics as text; without the database, only those that do not need it.

    Prometheus tolerates missing series, but not counters that decrease.
    """
    here = services()
    parts = [each for each in states() if each.name in _WITH_UP]
    known = {(each.name,): each.is_ok for each in parts if each.is_known}
    up = Gauge("up", "Whether a part of the stack is up.", known, ("part",))
    families = [up, *gauges.of_processes(here.bell.processes() or ())]
    if not parts[0].is_ok:
        return exposition(None, families)
    here.counters.work()
    figures = None
    with suppress(Unavailable), here.database.transaction(NO_TENANT) as session:
        figures = counters.read(session)
    for read in gauges.OF_DATABASE:
        with suppress(Unavailable), here.database.across_tenants(scans=False) as session:
            gauges.limit_time(session)
            families += list(read(session, here.settings))
    return exposition(figures, families)


def exposition(figures: Iterable[tuple[str, str, float]] | None, gauges: Iterable[Gauge]) -> bytes:
    """Write the counters and histograms of `figures` (if any), and `gauges`, for Prometheus.

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
    family = GaugeMetricFamily(f"record_service_{gauge.name}", gauge.text, labels=gauge.labels)
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
