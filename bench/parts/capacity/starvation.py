"""What another tenant feels of callers that take more than their share.

64 slow senders, 64 readers of a large record's exports and share page, 64 writers of large records,
and 120 readers that read nothing; meanwhile another tenant asks for its settings twenty times a
second, and a load balancer for `/healthz`. None of the many obeys Retry-After.
"""

import json
import math
from collections.abc import Iterator

from bench.figures import Bound, Figure, Reach, number, percentile
from bench.lab import Lab
from bench.processes import resident_bytes
from bench.scale import Scale
from bench.service import Tenant
from bench.traffic import load, siege
from bench.traffic.load import Plan
from bench.traffic.siege import Habit, Siege

_MANY = 64
_READERS = 120
_STEPS = 10_000
_RATE = 20.0
_CONNECTIONS = 4
_PATH = "/v1/tenant/settings"
_SLOW_BODY = b'{"name":"' + b"x" * 2_000 + b'"}'
_MIB = 1024 * 1024


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure another tenant's GET alone, then under each siege."""
    quiet, loud = lab.service.new_tenant(), lab.service.new_tenant()
    seconds = max(scale.seconds, 3.0)
    probe = quiet.gets(_PATH, connections=_CONNECTIONS, rate=_RATE, seconds=seconds)
    alive = quiet.gets("/healthz", connections=1, rate=_RATE, seconds=1.0)
    idle = percentile(_latencies(lab, probe), 99)
    yield Figure("another tenant's GET, alone, p99", idle, " ms")
    for words, besieging in _sieges(lab, loud):
        before = resident_bytes([lab.service.running["web"].pid])
        with siege.laid(besieging) as besieged:
            latencies = _latencies(lab, probe)
            health = percentile(_latencies(lab, alive), 100)
            grown = resident_bytes([lab.service.running["web"].pid]) - before
        note = (
            f"p50 {number(percentile(latencies, 50))} ms; /healthz at worst {number(health)} ms; "
            f"web {grown / _MIB:+.0f} MiB; {besieged}"
        )
        yield Figure(
            f"another tenant's GET beside {words}, p99",
            percentile(latencies, 99),
            " ms",
            Bound("alone", idle),
            Reach(at_most=100),
            note,
        )


def _sieges(lab: Lab, loud: Tenant) -> Iterator[tuple[str, Siege]]:
    port = lab.service.port
    drip = loud.head("POST", "/v1/agents")
    yield f"{_MANY} slow bodies", Siege(port, drip, _SLOW_BODY, _MANY, Habit.DRIP)
    loud.ask("PATCH", _PATH, {"bundle_visibility": "public"})
    large = loud.record_body(_STEPS)
    record_id = loud.ask("POST", "/v1/records", large)["id"]
    record = f"/v1/records/{record_id}"
    link = loud.ask("POST", f"{record}/share-links", {})["url"]
    page = link.removeprefix(lab.service.base_url)
    token = page.rpartition("/")[2]
    for words, path in (("reads of prov.json", f"{record}/prov.json"), ("share pages", page)):
        yield f"{_MANY} {words}", Siege(port, load.head("GET", path, []), b"", _MANY, Habit.REPEAT)
    body = json.dumps(large).encode()
    words = f"{_MANY} POSTs of {len(body) / 1e6:.1f} MB"
    yield words, Siege(port, loud.head("POST", "/v1/records"), body, _MANY, Habit.REPEAT)
    held = load.head("GET", f"{record}/bundle?share_token={token}", [])
    yield f"{_READERS} slow readers of a bundle", Siege(port, held, b"", _READERS, Habit.HOLD)


def _latencies(lab: Lab, plan: Plan) -> list[float]:
    """Return latencies in milliseconds; one that never ends for a service that does not answer."""
    try:
        tally = lab.load.drive(plan)
    except (TimeoutError, ConnectionError):
        return [math.inf]
    return [*tally.latencies_ms, *[math.inf] * tally.refused]
