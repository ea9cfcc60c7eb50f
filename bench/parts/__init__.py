"""The parts of a bench, by name, in the order in which they run."""

from collections.abc import Callable, Iterator, Mapping

from bench.figures import Figure
from bench.lab import Lab
from bench.parts import (
    accept,
    audit,
    backlog,
    canonical,
    console,
    deliveries,
    expiry,
    history,
    idle,
    latency,
    ledger,
    log,
    neighbours,
    preset,
    replay,
    search,
    slow,
    starvation,
)
from bench.scale import Scale

PARTS: Mapping[str, Callable[[Lab, Scale], Iterator[Figure]]] = {
    "idle": idle.run,
    "accept": accept.run,
    "deliveries": deliveries.run,
    "latency": latency.run,
    "neighbours": neighbours.run,
    "slow": slow.run,
    "starvation": starvation.run,
    "preset": preset.run,
    "backlog": backlog.run,
    "history": history.run,
    "replay": replay.run,
    "search": search.run,
    "console": console.run,
    "expiry": expiry.run,
    "canonical": canonical.run,
    "ledger": ledger.run,
    "log": log.run,
    "audit": audit.run,
}
