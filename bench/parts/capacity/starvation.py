"""What another tenant feels of callers that take more than their share.

Each siege (`bench.traffic.hostile`) goes on while another tenant asks for its settings, and a load
balancer for `/healthz`. In the end the web processes' memory must be
back where it was once each kind of request had come.
"""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

from bench.figures import Bound, Figure, Reach, number, percentile
from bench.lab import Lab
from bench.processes import resident_bytes
from bench.scale import Scale
from bench.service import Tenant
from bench.traffic import hostile, siege
from bench.traffic.load import Plan
from bench.traffic.siege import Siege

_RATE = 20.0
_CONNECTIONS = 4
_MIB = 1024 * 1024
_GROWTH = 1.2
# Renderings are kept for a minute.
_CALM_SECONDS = 90.0


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure another tenant's GET alone, then under each siege."""
    quiet, loud = lab.service.new_tenant(), lab.service.new_tenant()
    seconds = max(scale.seconds, 3.0)
    probe = quiet.gets(hostile.SETTINGS, connections=_CONNECTIONS, rate=_RATE, seconds=seconds)
    alive = quiet.gets("/healthz", connections=1, rate=_RATE, seconds=1.0)
    idle = percentile(_latencies(lab, probe), 99)
    yield Figure("another tenant's GET, alone, p99", idle, " ms")
    probes = "200 probes under a stalled database", hostile.probes(lab.service.port)
    sieges = [*hostile.sieges(lab.service, loud), probes]
    fresh = _resident(lab)
    _warm_up(lab, quiet, sieges)
    began = _resident(lab)
    for words, besieging in sieges:
        yield _beside(lab, words, besieging, probe, alive, idle)
    yield _memory(lab, alive, fresh, began)


def _warm_up(lab: Lab, tenant: Tenant, sieges: Sequence[tuple[str, Siege]]) -> None:
    """Ask for each list of the API, then as each siege does from as many connections as `tenant`.

    Every process must have met each kind of request.
    """
    for path, methods in tenant.ask("GET", "/openapi.json")["paths"].items():
        if "get" in methods and "{" not in path:
            lab.load.drive(tenant.gets(path, connections=_CONNECTIONS, count=2 * _CONNECTIONS))
    for _, each in sieges:
        with siege.laid(replace(each, connections=_CONNECTIONS)):
            pass


def _beside(
    lab: Lab, words: str, besieging: Siege, probe: Plan, alive: Plan, idle: float
) -> Figure:
    before = _resident(lab)
    stalls = "stalled" in words
    stall = hostile.stalled(lab.postgres.admin_url) if stalls else nullcontext()
    with stall, siege.laid(besieging) as besieged:
        latencies = _latencies(lab, probe)
        health = percentile(_latencies(lab, alive), 100)
        grown = _resident(lab) - before
    note = (
        f"p50 {number(percentile(latencies, 50))} ms; /healthz at worst {number(health)} ms; "
        f"web {grown / _MIB:+.0f} MiB; {besieged}"
    )
    return Figure(
        f"another tenant's GET beside {words}, p99",
        percentile(latencies, 99),
        " ms",
        Bound("alone", idle),
        Reach(at_most=100),
        note,
    )


def _memory(lab: Lab, alive: Plan, fresh: int, began: int) -> Figure:
    """Return what the web processes hold once they are calm, and a load balancer asks alone."""
    asked = time.monotonic()
    while _resident(lab) > _GROWTH * began and time.monotonic() < asked + _CALM_SECONDS:
        _latencies(lab, alive)
    return Figure(
        "memory of web after the sieges",
        _resident(lab) / _MIB,
        " MiB",
        Bound("before them", began / _MIB),
        Reach(at_most=_GROWTH, of_ratio=True),
        f"after {time.monotonic() - asked:.0f} s; {number(fresh / _MIB)} MiB before any",
    )


def _resident(lab: Lab) -> int:
    return resident_bytes([lab.service.running["web"].pid])


def _latencies(lab: Lab, plan: Plan) -> list[float]:
    """Return latencies in milliseconds; one that never ends for a service that does not answer."""
    try:
        tally = lab.load.drive(plan)
    except (TimeoutError, ConnectionError) as error:
        print(f"starvation: {error!r}", file=sys.stderr)
        return [math.inf]
    return [*tally.latencies_ms, *[math.inf] * tally.refused]
