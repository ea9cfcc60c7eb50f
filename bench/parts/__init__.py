"""The parts of a bench, by name, in the order in which they run.

`capacity` is about the processes, `delivery` about deliveries, `volume` about millions of rows,
`evidence` about what others verify.
"""

from collections.abc import Callable, Iterator, Mapping

from bench.figures import Figure
from bench.lab import Lab
from bench.parts.capacity import (
    accept,
    front_door,
    idle,
    preset,
    rules,
    starvation,
    tenants,
)
from bench.parts.delivery import (
    backlog,
    deliveries,
    fan_out,
    growth,
    lanes,
    latency,
    neighbours,
    slow,
    snapshot,
    wal,
)
from bench.parts.evidence import audit, daily, log
from bench.parts.volume import console, expiry, history, search
from bench.scale import Scale

PARTS: Mapping[str, Callable[[Lab, Scale], Iterator[Figure]]] = {
    "idle": idle.run,
    "accept": accept.run,
    "front_door": front_door.run,
    "deliveries": deliveries.run,
    "lanes": lanes.run,
    "latency": latency.run,
    "neighbours": neighbours.run,
    "slow": slow.run,
    "starvation": starvation.run,
    "rules": rules.run,
    "tenants": tenants.run,
    "preset": preset.run,
    "backlog": backlog.run,
    "snapshot": snapshot.run,
    "wal": wal.run,
    "growth": growth.run,
    "history": history.run,
    "search": search.run,
    "console": console.run,
    "expiry": expiry.run,
    "log": log.run,
    "audit": audit.run,
    "daily": daily.run,
    # What its webhooks leave is cancelled afterwards, beside whatever is measured then.
    "fan_out": fan_out.run,
}
