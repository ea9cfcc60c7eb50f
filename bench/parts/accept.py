"""Findings accepted a second, each committed with its event and its delivery.

No worker runs meanwhile, as nothing is delivered behind the bare route either.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from app.dev.store import free_port
from bench.figures import Bound, Figure, Reach, median, percentile
from bench.lab import Lab
from bench.load import Plan, Tally
from bench.peers import tables
from bench.processes import BenchError, until
from bench.receivers import listens
from bench.scale import Scale
from bench.service import Tenant

CONNECTIONS = 16
_BATCH = 500
_BATCH_CONNECTIONS = 4
_START_SECONDS = 20.0


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure single findings beside the bare route, then batches."""
    tenant = lab.service.new_tenant()
    webhook = tenant.webhook(lab.receiver.url())
    lab.service.stop_role("worker")
    single = tenant.findings(connections=CONNECTIONS, seconds=scale.seconds)
    with _bare_route(lab, single) as bare:
        yield from _singles(lab, single, bare, scale)
    yield _batches(tenant, scale)
    tenant.ask("DELETE", webhook)
    lab.service.start_role("worker")
    lab.service.wait_until_up()


def _singles(lab: Lab, single: Plan, bare: Plan, scale: Scale) -> Iterator[Figure]:
    rates: dict[Plan, list[float]] = {single: [], bare: []}
    for plan in rates:
        _drive(lab, replace(plan, seconds=1.0))
    for _ in range(scale.rounds):
        for plan, measured in rates.items():
            measured.append(_drive(lab, plan).per_second)
    ours, bound = median(rates[single]), median(rates[bare])
    yield Figure(
        "accept",
        f"findings accepted ({CONNECTIONS} connections)",
        ours,
        "/s",
        Bound("bare Flask route, one INSERT", bound),
        Reach(at_least=0.6, of_ratio=True),
    )
    at_half = _drive(lab, replace(single, rate=ours / 2)).latencies_ms
    bare_at_half = _drive(lab, replace(bare, rate=bound / 2)).latencies_ms
    for percent, reach in ((50, None), (99, Reach(at_most=50))):
        yield Figure(
            "accept",
            f"answer to a finding at half that rate, p{percent}",
            percentile(at_half, percent),
            " ms",
            Bound("bare route at half of its own", percentile(bare_at_half, percent)),
            reach,
        )


def _batches(tenant: Tenant, scale: Scale) -> Figure:
    plan = tenant.findings(connections=_BATCH_CONNECTIONS, batch=_BATCH, seconds=scale.seconds)
    tenant.post(replace(plan, seconds=0.5))
    tally = tenant.post(plan)
    latencies = tally.latencies_ms
    return Figure(
        "accept",
        f"findings accepted in batches of {_BATCH}",
        tally.per_second * _BATCH,
        "/s",
        reach=Reach(at_least=10_000),
        note=f"a batch p50 {median(latencies):.0f} ms, p99 {percentile(latencies, 99):.0f} ms",
    )


@contextmanager
def _bare_route(lab: Lab, like: Plan) -> Iterator[Plan]:
    """Serve the bare route as the Procfile serves the service; yield the plan that asks it."""
    port = free_port()
    line = lab.service.line("web").replace("app.web:", "bench.peers.route:")
    with lab.database() as urls:
        with psycopg.connect(urls.admin) as connection:
            connection.execute(tables.ROUTE)
        environ = {"PEER_DATABASE_URL": urls.admin, "HOST": "127.0.0.1", "PORT": str(port)}
        with lab.running("route", ["/bin/sh", "-c", line], **environ):
            until(lambda: listens(port), _START_SECONDS, "the bare route")
            yield replace(like, port=port)


def _drive(lab: Lab, plan: Plan) -> Tally:
    tally = lab.load.drive(plan)
    if tally.refused:
        raise BenchError(f"{tally.refused} requests were refused, first: {tally.refusal}")
    return tally
