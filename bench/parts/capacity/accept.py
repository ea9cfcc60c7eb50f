"""Findings accepted a second, each committed with its event and its delivery; and records.

No worker runs meanwhile, as nothing is delivered behind the bare route either.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from bench.figures import Bound, Figure, Reach, median, percentile
from bench.lab import Lab
from bench.pace import Pace, middle
from bench.peers import route
from bench.processes import listens, until
from bench.scale import Scale
from bench.service import Tenant
from bench.traffic.load import Plan, Tally
from dev.stores.store import free_port

CONNECTIONS = 16
_BATCH = 500
_BATCH_CONNECTIONS = 4
_START_SECONDS = 20.0
_WARM_UP_SECONDS = 1.0
# As granian serves a Flask application by itself, with as many processes and threads as ours has.
_BARE = (
    "exec granian bench.peers.route:create_app --factory --interface wsgi --http 1 --no-ws"
    ' --host "$HOST" --port "$PORT" --workers "${WEB_CONCURRENCY:-2}"'
    ' --blocking-threads "${WEB_THREADS:-16}"'
)


@dataclass(frozen=True)
class _Contender:
    """A web server, by its process number, and what is asked of it."""

    plan: Plan
    pid: int

    def drive(self, lab: Lab, **limits: Any) -> Tally:
        """Ask, within other limits of the plan."""
        return lab.drive(replace(self.plan, **limits))


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure single findings beside the bare route, then batches."""
    tenant = lab.service.new_tenant()
    webhook = tenant.webhook(lab.receiver.url())
    lab.service.stop_role("worker")
    single = tenant.findings(connections=CONNECTIONS, seconds=scale.seconds)
    ours = _Contender(single, lab.service.running["web"].pid)
    with _bare_route(lab, single) as bare:
        yield from _singles(lab, ours, bare, scale)
        records = tenant.records(connections=CONNECTIONS, seconds=scale.seconds)
        yield from _records(lab, replace(ours, plan=records), bare, scale)
    findings = tenant.findings(connections=_BATCH_CONNECTIONS, batch=_BATCH, seconds=scale.seconds)
    yield _batches(tenant, findings, f"findings accepted in batches of {_BATCH}", 10_000)
    records = tenant.records(connections=_BATCH_CONNECTIONS, batch=_BATCH, seconds=scale.seconds)
    yield _batches(tenant, records, f"records of 2 KB accepted in batches of {_BATCH}", 6_000)
    tenant.ask("DELETE", webhook)
    lab.service.start_role("worker")
    lab.service.wait_until_up()


def _singles(lab: Lab, ours: _Contender, bare: _Contender, scale: Scale) -> Iterator[Figure]:
    bare.drive(lab, seconds=_WARM_UP_SECONDS)
    words, least = "findings accepted", Reach(at_least=0.5, of_ratio=True)
    mine, bound = yield from _in_turns(lab, ours, bare, scale, words, "a finding", least)
    at_half = ours.drive(lab, rate=mine.per_second / 2).latencies_ms
    bare_at_half = bare.drive(lab, rate=bound.per_second / 2).latencies_ms
    for percent, reach in ((50, None), (99, Reach(at_most=50))):
        words = f"answer to a finding at half that rate, p{percent}"
        beside = Bound("bare route at half of its own", percentile(bare_at_half, percent))
        yield Figure(words, percentile(at_half, percent), " ms", beside, reach)


def _records(lab: Lab, ours: _Contender, bare: _Contender, scale: Scale) -> Iterator[Figure]:
    words, least = "records of 2 KB accepted", Reach(at_least=1_500)
    mine, _ = yield from _in_turns(lab, ours, bare, scale, words, "a record", least)
    at_half = ours.drive(lab, rate=mine.per_second / 2).latencies_ms
    for percent in (50, 99):
        words = f"answer to a record at half that rate, p{percent}"
        yield Figure(words, percentile(at_half, percent), " ms")


def _in_turns(
    lab: Lab,
    ours: _Contender,
    bare: _Contender,
    scale: Scale,
    accepted: str,
    one: str,
    least: Reach | None = None,
) -> Generator[Figure, None, tuple[Pace, Pace]]:
    """Ask both as fast as they answer; yield rate and cost, return the medians of both."""
    ours.drive(lab, seconds=_WARM_UP_SECONDS)
    paces = [[lab.paced(each.plan, each.pid) for each in (ours, bare)] for _ in range(scale.rounds)]
    mine, bound = map(middle, zip(*paces, strict=True))
    name = "bare Flask route, one INSERT"
    words = f"{accepted} ({CONNECTIONS} connections)"
    rate, cost = Bound(name, bound.per_second), Bound(name, bound.cpu_each)
    yield Figure(words, mine.per_second, "/s", rate, least)
    yield Figure(f"CPU of {one}, stores included", mine.cpu_each, " µs", cost)
    return mine, bound


def _batches(tenant: Tenant, plan: Plan, words: str, least: float) -> Figure:
    tenant.post(replace(plan, seconds=0.5))
    tally = tenant.post(plan)
    latencies = tally.latencies_ms
    return Figure(
        words,
        tally.per_second * _BATCH,
        "/s",
        reach=Reach(at_least=least),
        note=f"a batch p50 {median(latencies):.0f} ms, p99 {percentile(latencies, 99):.0f} ms",
    )


@contextmanager
def _bare_route(lab: Lab, like: Plan) -> Iterator[_Contender]:
    """Serve the bare route, and ask it the same."""
    port = free_port()
    with lab.database() as urls:
        with psycopg.connect(urls.admin) as connection:
            connection.execute(route.TABLE)
        environ = {"PEER_DATABASE_URL": urls.admin, "HOST": "127.0.0.1", "PORT": str(port)}
        with lab.running("route", ["/bin/sh", "-c", _BARE], **environ) as process:
            until(lambda: listens(port), _START_SECONDS, "the bare route")
            yield _Contender(replace(like, port=port), process.pid)
