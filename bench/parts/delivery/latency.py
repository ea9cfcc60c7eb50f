"""How long a finding is on its way: from its commit to the first byte at the receiver.

The event carries the database's time inside the transaction, so what is measured from it holds the
commit as well. Everything is on one machine, so all moments are of one clock.
"""

from collections.abc import Iterator
from dataclasses import replace

from bench.figures import Figure, Reach, percentile
from bench.lab import Lab
from bench.scale import Scale
from bench.service import Tenant
from bench.traffic.arrivals import Way, collect
from bench.traffic.load import Plan

_CONNECTIONS = 8
_IDLE_RATE = 25.0
_ARRIVE_SECONDS = 60.0
_WARM_UP = 50


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure while nothing else happens, then at half of what can be delivered."""
    tenant = lab.service.new_tenant()
    webhook = tenant.webhook(lab.receiver.url("/stamp"))
    plan = tenant.findings(connections=_CONNECTIONS)
    _ways(lab, tenant, replace(plan, count=_WARM_UP, rate=_IDLE_RATE))
    idle = _ways(lab, tenant, replace(plan, count=scale.samples, rate=_IDLE_RATE))
    yield from _figures("idle", idle, Reach(at_most=10), Reach(at_most=50))
    most = _most(lab, tenant, replace(plan, seconds=scale.seconds))
    yield Figure("findings posted one by one and delivered meanwhile", most, "/s")
    half = replace(plan, seconds=scale.seconds, rate=most / 2)
    busy = _ways(lab, tenant, half)
    yield from _figures(f"at half load ({most / 2:.0f}/s)", busy, None, None)
    tenant.ask("DELETE", webhook)


def _ways(lab: Lab, tenant: Tenant, plan: Plan) -> list[Way]:
    lab.receiver.arrivals()
    return collect(lab.receiver, tenant.post(plan).answers, _ARRIVE_SECONDS)


def _most(lab: Lab, tenant: Tenant, plan: Plan) -> float:
    """Return how many findings a second are accepted and delivered, until the last has arrived."""
    ways = _ways(lab, tenant, plan)
    return len(ways) / (max(way.arrival for way in ways) - min(way.due for way in ways))


def _figures(
    when: str, ways: list[Way], reach50: Reach | None, reach99: Reach | None
) -> Iterator[Figure]:
    since_event = [way.since_event_ms for way in ways]
    since_answer = [way.since_answer_ms for way in ways]
    for percent, reach in ((50, reach50), (99, reach99)):
        yield Figure(
            f"event to first byte, {when}, p{percent}",
            percentile(since_event, percent),
            " ms",
            reach=reach,
            note=f"from the answer to the POST {percentile(since_answer, percent):.1f} ms",
        )
