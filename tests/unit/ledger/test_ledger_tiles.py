"""Tiles (C2SP tlog-tiles) grow alike in any batches, and proofs are read from them."""

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tlog_scales.reader import TilesReader
from tlog_scales.signing import DummySigner
from tlog_scales.writer import TilesWriter

from app.ledger import merkle, tiles
from app.ledger.merkle import EMPTY_ROOT, leaf_hash, verify_consistency, verify_inclusion
from app.ledger.tiles import ENTRIES, Growth, Tile, TileId
from tests.unit.ledger.tile_entries import ENTRY_DATA, MANY, Stored, grown_entries

LEAVES = [leaf_hash(each) for each in ENTRY_DATA]


def grown(stored: Stored, size: int, leaf_hashes: Sequence[bytes]) -> Growth:
    growth = tiles.grow(size, stored.__getitem__, leaf_hashes)
    stored.update(growth.changed)
    return growth


class Served:
    """What a server would answer from the stored tiles, as a backend of tlog-scales."""

    def __init__(self, stored: Stored, size: int) -> None:
        self.stored = stored
        self.size = size

    def get(self, *path: str) -> bytes | None:
        tile = tiles.parse_path("/".join(path))
        if tile.width > tiles.width(tile.level, tile.number, self.size):
            return None
        if tile.level == ENTRIES:
            return tiles.cut_entries(self.stored[tile.id], tile.width)
        return tiles.cut(self.stored[tile.id], tile.width)


@pytest.fixture(scope="module")
def seventy_thousand() -> tuple[Stored, Growth]:
    stored: Stored = {}
    return stored, grown(stored, 0, LEAVES)


def test_the_example_of_the_specification(seventy_thousand: tuple[Stored, Growth]) -> None:
    stored, _ = seventy_thousand
    widths = {each: len(data) // 32 for each, data in stored.items()}
    assert [widths[TileId(0, number)] for number in range(274)] == [256] * 273 + [112]
    assert [widths[TileId(1, number)] for number in range(2)] == [256, 17]
    assert widths[TileId(2, 0)] == 1
    assert len(widths) == 274 + 2 + 1
    assert tiles.edge(MANY) == [Tile(0, 273, 112), Tile(1, 1, 17), Tile(2, 0, 1)]
    assert tiles.edge(256) == [Tile(1, 0, 1)]
    assert tiles.edge(0) == []


# Bounds of tiles at two levels, and what lies about them.
BATCHES = st.lists(
    st.one_of(st.sampled_from([0, 1, 255, 256, 257, 511, 65_535]), st.integers(0, 3000)), max_size=8
)


def widths(size: int) -> dict[TileId, int]:
    """The tiles of a tree, and how many hashes each has."""
    places = [TileId(level, number) for level in range(3) for number in range(MANY // 256 + 1)]
    return {each: held for each in places if (held := tiles.width(*each, size))}


@settings(max_examples=12)
@given(BATCHES)
def test_any_split_into_batches_gives_the_same_tiles(batches: list[int]) -> None:
    stored: Stored = {}
    size = 0
    before = EMPTY_ROOT
    for batch in batches:
        fresh = LEAVES[size : size + batch]
        growth = grown(stored, size, fresh)
        assert growth.old_root == before
        wider = widths(size + len(fresh)).items() - widths(size).items()
        assert {each: len(data) // 32 for each, data in growth.changed.items()} == dict(wider)
        size, before = size + len(fresh), growth.root
    assert size == len(LEAVES[: sum(batches)])
    at_once: Stored = {}
    assert grown(at_once, 0, LEAVES[:size]).root == before == merkle.root(LEAVES[:size])
    assert at_once == stored


@settings(max_examples=12)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=3))
def test_another_writer_of_tiles_writes_the_same_bytes(batches: list[int]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        writer = TilesWriter.create(folder / "log", "log.example")
        stored: Stored = {}
        size = 0
        for batch in batches:
            for entry in ENTRY_DATA[size : size + batch]:
                writer.add_leaf(entry)
            writer.commit([DummySigner()], gc=False)
            grown(stored, size, LEAVES[size : size + batch])
            grown_entries(stored, size, ENTRY_DATA[size : size + batch])
            size += batch
        served = Served(stored, size)
        written = [each for each in (folder / "log" / "tile").rglob("*") if each.is_file()]
        assert written
        for each in written:
            assert served.get(each.relative_to(folder / "log").as_posix()) == each.read_bytes()
        full = {each.relative_to(folder / "log").as_posix() for each in written}
        assert {Tile(*each, 256).path for each, data in stored.items() if _is_full(each, data)} == {
            each for each in full if ".p/" not in each
        }


def _is_full(where: TileId, data: bytes) -> bool:
    held = len(tiles.parse_entries(data)) if where.level == ENTRIES else len(data) // 32
    return held == 256


def test_a_stranger_reads_roots_and_proofs_of_any_size_from_the_tiles(
    seventy_thousand: tuple[Stored, Growth],
) -> None:
    stored, growth = seventy_thousand
    assert growth.root == merkle.root(LEAVES)
    check_by_a_stranger(stored, LEAVES, times=60)


def check_by_a_stranger(stored: Stored, leaf_hashes: Sequence[bytes], *, times: int) -> None:
    pick = random.Random(len(leaf_hashes))
    for _ in range(times):
        size = pick.randint(1, pick.choice([1000, len(leaf_hashes)]))
        old, index = pick.randint(0, size), pick.randrange(size)
        reader = TilesReader(Served(stored, size))
        reader.set_size(size)
        roots = [tiles.root(each, stored.__getitem__) for each in (old, size)]
        assert reader.calculate_root_hash() == roots[1]

        needed = tiles.holding(merkle.inclusion_subtrees(index, size))
        fetched = {each: stored[each] for each in needed}
        proof = merkle.inclusion_proof(index, size, tiles.reader(fetched.__getitem__))
        theirs = reader.get_inclusion_proof(index, size)
        assert theirs.node_hashes == proof
        theirs.check(leaf_hashes[index], roots[1])
        verify_inclusion(leaf_hashes[index], index, size, proof, roots[1])

        needed = tiles.holding(merkle.consistency_subtrees(old, size))
        fetched = {each: stored[each] for each in needed}
        proof = merkle.consistency_proof(old, size, tiles.reader(fetched.__getitem__))
        verify_consistency(old, size, proof, *roots)
        if old:
            shown = reader.get_consistency_proof(old, size)
            assert shown.node_hashes == proof
            shown.check(*roots)


@pytest.mark.parametrize("held", [0, 11, 13, 256])
def test_a_stored_tile_of_another_width_is_never_grown(held: int) -> None:
    stored: Stored = {}
    grown(stored, 0, LEAVES[: 256 + 12])
    stored[TileId(0, 1)] = b"".join(LEAVES[256 : 256 + held])
    with pytest.raises(ValueError, match=f"tile/0/001 holds {held} hashes, not 12"):
        tiles.grow(256 + 12, stored.__getitem__, LEAVES[268:280])


def test_a_damaged_tile_shows_in_the_old_root() -> None:
    stored: Stored = {}
    root = grown(stored, 0, LEAVES[:300]).root
    stored[TileId(0, 1)] = bytes([stored[TileId(0, 1)][0] ^ 1]) + stored[TileId(0, 1)][1:]
    assert tiles.grow(300, stored.__getitem__, LEAVES[300:310]).old_root != root


@pytest.mark.parametrize("length", [0, 31, 33])
def test_what_is_no_hash_is_never_a_leaf(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        grown({}, 0, [LEAVES[0], bytes(length)])
