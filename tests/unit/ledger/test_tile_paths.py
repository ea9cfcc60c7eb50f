"""Paths of tiles, and entry bundles: one spelling each."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger import tiles
from app.ledger.tiles import ENTRIES, Tile


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 0), "tile/0/000"),
        (Tile(0, 1_234_067), "tile/0/x001/x234/067"),
        (Tile(63, 999, 255), "tile/63/999.p/255"),
        (Tile(1, 1000, 1), "tile/1/x001/000.p/1"),
        (Tile(ENTRIES, 67, 9), "tile/entries/067.p/9"),
        (Tile(0, 2**63 - 1), "tile/0/x009/x223/x372/x036/x854/x775/807"),
    ],
)
def test_paths_are_as_specified(tile: Tile, path: str) -> None:
    assert tile.path == path
    assert tiles.parse_path(path) == tile


@given(st.integers(ENTRIES, 63), st.integers(0, 2**63 - 1), st.integers(1, 256))
def test_every_path_is_read_back(level: int, number: int, width: int) -> None:
    tile = Tile(level, number, width)
    assert tiles.parse_path(tile.path) == tile


DIGITS = st.integers(1, 4).flatmap(lambda most: st.text("0159", min_size=1, max_size=most))
LEVELS = st.one_of(st.just("entries"), DIGITS)
NUMBERS = st.lists(st.text("0x5", min_size=3, max_size=4), max_size=8).map("/".join)


@given(st.builds("tile/{}/{}{}".format, LEVELS, NUMBERS, DIGITS.map(".p/{}".format) | st.just("")))
def test_every_path_that_is_read_is_canonical(path: str) -> None:
    try:
        tile = tiles.parse_path(path)
    except ValueError:
        return
    assert tile.path == path
    assert urlsplit(f"https://log.example/{path}").path == f"/{path}"


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=256), st.data())
def test_entry_bundles_are_read_back_and_cut(entries: list[bytes], data: st.DataObject) -> None:
    bundle = tiles.encode_entries(entries)
    assert tiles.parse_entries(bundle) == entries
    width = data.draw(st.integers(1, len(entries)))
    assert tiles.cut_entries(bundle, width) == tiles.encode_entries(entries[:width])
    with pytest.raises(ValueError, match="entr"):
        tiles.cut_entries(bundle, len(entries) + 1)
    for odd in (bundle[:-1], bundle + b"\x00", bundle + b"\x00\x01"):
        with pytest.raises(ValueError, match="within an entry"):
            tiles.parse_entries(odd)


@given(st.binary(max_size=60))
def test_every_entry_bundle_that_is_read_is_canonical(data: bytes) -> None:
    try:
        entries = tiles.parse_entries(data)
    except ValueError:
        return
    assert tiles.encode_entries(entries) == data


def test_entry_bundles_have_limits() -> None:
    assert tiles.parse_entries(tiles.encode_entries([bytes(65_535)])) == [bytes(65_535)]
    with pytest.raises(ValueError, match="65535"):
        tiles.encode_entries([bytes(65_536)])
    with pytest.raises(ValueError, match="1 to 256"):
        tiles.parse_entries(tiles.encode_entries([b""] * 257))
    with pytest.raises(ValueError, match="1 to 256"):
        tiles.parse_entries(b"")
    with pytest.raises(ValueError, match="does not hold 3"):
        tiles.grow_entries(3, tiles.encode_entries([b"one", b"two"]), [b"three"])
