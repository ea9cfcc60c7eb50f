"""What a healthy webhook feels of dead ones: receivers that take a request and hang for 20 s.

Neither the dead webhooks nor the healthy one have been tried before, and 200 events wait on each of
the dead when the healthy one is made.
"""

from collections.abc import Iterator
from dataclasses import replace

import psycopg

from bench.figures import Bound, Figure, Reach, percentile
from bench.lab import Lab
from bench.processes import until
from bench.scale import Scale
from bench.traffic.arrivals import collect

_WAITING = 200
_RATE = 10.0
_ARRIVE_SECONDS = 60.0
_QUIET_SECONDS = 40.0


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure beside more and more dead webhooks."""
    alone: dict[int, float] = {}
    for dead in scale.dead:
        ways = _beside(lab, dead, scale.samples // 2)
        for percent, word in ((50, "p50"), (100, "worst")):
            measured = percentile(ways, percent)
            bound = Bound("alone", alone[percent]) if alone.get(percent) else None
            alone.setdefault(percent, measured)
            yield Figure(
                f"a healthy webhook beside {dead} dead ones, {word}",
                measured,
                " ms",
                bound,
                Reach(at_most=2_000),
            )


def _beside(lab: Lab, dead: int, samples: int) -> list[float]:
    """Return how long each finding took to the healthy webhook's receiver, in milliseconds."""
    tenant = lab.service.new_tenant()
    hanging = [tenant.webhook(lab.receiver.url("/hang")) for _ in range(dead)]
    plan = tenant.findings(connections=2)
    if dead:
        tenant.post(replace(plan, count=_WAITING))
    healthy = tenant.webhook(lab.receiver.url("/stamp"))
    lab.receiver.arrivals()
    answers = tenant.post(replace(plan, count=samples, rate=_RATE)).answers
    ways = collect(lab.receiver, answers, _ARRIVE_SECONDS)
    for webhook in [*hanging, healthy]:
        tenant.ask("DELETE", webhook)
    wait_until_quiet(lab)
    return [way.since_due_ms for way in ways]


def wait_until_quiet(lab: Lab) -> None:
    """Wait until no worker is held by a receiver that hangs."""
    query = "SELECT 1 FROM lanes WHERE clock_timestamp() < ANY (slot_leases)"
    with psycopg.connect(lab.postgres.admin_url, autocommit=True) as admin:
        until(lambda: admin.execute(query).fetchone() is None, _QUIET_SECONDS, "every lane is left")
