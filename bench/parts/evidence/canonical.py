"""Canonical JSON: our writer beside the reference library, on a document of 2 KB."""

import time
from collections.abc import Callable, Iterator

import rfc8785

from app.lib import canonical_json
from bench.figures import Bound, Figure, Reach, median
from bench.lab import Lab
from bench.scale import Scale

_TIMES = 200

DOCUMENT = {
    "id": "evt_01930000000070008000000000000000",
    "type": "finding.created",
    "timestamp": "2026-11-21T09:00:00.000000Z",
    "data": {
        "title": "A customer's address was written to a log",
        "steps": [
            {
                "name": f"step {number}",
                "kind": "tool",
                "tokens": number * 1_000,
                "seconds": number / 7,
                "ok": number % 2 == 0,
                "inputs": {"path": "/var/log/app.log", "lines": [1, 2, 3], "note": "größer"},
            }
            for number in range(13)
        ],
    },
}


def run(_lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Time both in turns."""
    size = len(canonical_json.dumps(DOCUMENT))
    ours, bound = [], []
    for _ in range(scale.repeats):
        ours.append(_microseconds(canonical_json.dumps))
        bound.append(_microseconds(rfc8785.dumps))
    yield Figure(
        f"canonical JSON of {size} bytes",
        median(ours),
        " µs",
        Bound("rfc8785", median(bound)),
        Reach(at_most=40),
    )


def _microseconds(write: Callable[..., bytes]) -> float:
    began = time.perf_counter()
    for _ in range(_TIMES):
        write(DOCUMENT)
    return (time.perf_counter() - began) / _TIMES * 1e6
