"""A tile is proven by the root alone: whatever byte of what is read was changed is found."""

import functools
from hashlib import sha256
from random import Random

import pytest

from app.ledger import merkle, tiles
from app.ledger.tiles import ENTRIES, TileId, Unproven

SIZES = (1, 2, 255, 256, 257, 300, 511, 512, 65_535, 65_536, 65_537, 66_000)


class Log:
    """A log of so many leaves with all its tiles."""

    def __init__(self, size: int) -> None:
        data = [b"leaf %d" % index for index in range(size)]
        hashes = [merkle.leaf_hash(each) for each in data]
        nothing: dict[TileId, bytes] = {}
        grown = tiles.grow(0, nothing.__getitem__, hashes)
        bundles = tiles.grow_entries(0, b"", data)
        self.size, self.root = size, grown.root
        self.tiles = dict(grown.changed)
        self.tiles |= {TileId(ENTRIES, number): each for number, each in bundles.items()}

    def places(self) -> list[TileId]:
        """Return tiles of every kind: the first and the last of each level, and some between."""
        rng = Random(self.size)
        of_level: dict[int, list[TileId]] = {}
        for each in sorted(self.tiles):
            of_level.setdefault(each.level, []).append(each)
        return [
            place
            for places in of_level.values()
            for place in {places[0], places[-1], rng.choice(places)}
        ]


@functools.cache
def made(size: int) -> Log:
    """Make a log once."""
    return Log(size)


@pytest.mark.parametrize("size", SIZES)
def test_every_tile_and_bundle_is_proven_by_what_is_needed_for_it(size: int) -> None:
    log = made(size)
    for place in log.places():
        read = {each: log.tiles[each] for each in tiles.needed(place, size)}
        found = tiles.proven(place, size, log.root, read.__getitem__)
        assert found == log.tiles[place]


@pytest.mark.parametrize("size", [300, 65_537])
def test_a_tile_that_has_grown_since_is_proven_as_wide_as_it_was(size: int) -> None:
    log, larger = made(size), made(size + 5)
    for place in log.places():
        found = tiles.proven(place, size, log.root, larger.tiles.__getitem__)
        assert found == log.tiles[place]


@pytest.mark.parametrize("size", SIZES)
def test_one_changed_or_missing_tile_is_refused_and_named(size: int) -> None:
    log, rng = made(size), Random(size)
    for place in log.places():
        needed = tiles.needed(place, size)
        for damaged in needed:
            data = bytearray(log.tiles[damaged])
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            for stored in (
                log.tiles | {damaged: bytes(data)},
                log.tiles | {damaged: b""},
                {each: log.tiles[each] for each in needed if each != damaged},
            ):
                with pytest.raises(Unproven) as refused:
                    tiles.proven(place, size, log.root, stored.__getitem__)
                if damaged not in [each.id for each in tiles.edge(size)]:
                    assert refused.value.tile.id == damaged


def test_another_root_proves_nothing() -> None:
    log = made(300)
    with pytest.raises(Unproven):
        tiles.proven(TileId(0, 0), 300, sha256(b"other").digest(), log.tiles.__getitem__)
