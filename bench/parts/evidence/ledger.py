"""The transparency log's tree: leaves grown a second, beside hashlib over as many bytes."""

import time
from collections.abc import Iterator
from hashlib import sha256

from app.ledger import tiles
from app.ledger.leaves import Record
from app.ledger.merkle import leaf_hash
from app.ledger.tiles import TileId
from bench.figures import Bound, Figure, Reach, median
from bench.lab import Lab
from bench.scale import Scale

_BATCH = 10_000


def run(_lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Grow one tree batch by batch, and hash each batch plainly, in turns."""
    stored: dict[TileId, bytes] = {}
    ours, bound = [], []
    size = 0
    for _ in range(scale.repeats):
        numbers = range(size, size + _BATCH)
        leaves = [Record(sha256(b"%d" % number).digest()).data for number in numbers]
        began = time.process_time()
        growth = tiles.grow(size, stored.__getitem__, list(map(leaf_hash, leaves)))
        stored.update(growth.changed)
        ours.append(_BATCH / (time.process_time() - began))
        bound.append(_BATCH / _plain_seconds(leaves))
        size += _BATCH
    yield Figure(
        f"leaves grown, {_BATCH} at a time",
        median(ours),
        "/s",
        Bound("hashlib over leaves and nodes", median(bound)),
        Reach(at_least=0.5, of_ratio=True),
    )


def _plain_seconds(leaves: list[bytes]) -> float:
    """Return the CPU time of a hash for each leaf and one for each node over them."""
    node = bytes(65)
    began = time.process_time()
    for leaf in leaves:
        sha256(leaf).digest()
        sha256(node).digest()
    return time.process_time() - began
