"""The parts of a bench, by name, in the order in which they run."""

from collections.abc import Callable, Iterator, Mapping

from bench.figures import Figure
from bench.lab import Lab
from bench.parts import accept, backlog, canonical, deliveries, idle, latency, log, neighbours
from bench.scale import Scale

PARTS: Mapping[str, Callable[[Lab, Scale], Iterator[Figure]]] = {
    "idle": idle.run,
    "accept": accept.run,
    "deliveries": deliveries.run,
    "latency": latency.run,
    "neighbours": neighbours.run,
    "backlog": backlog.run,
    "canonical": canonical.run,
    "log": log.run,
}
