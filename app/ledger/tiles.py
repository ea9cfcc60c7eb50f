"""Tiles: how the tree is stored and served (C2SP tlog-tiles), and proven by a published root.

Tile (level, number) holds up to 256 hashes of complete subtrees of 256^level leaves. A partial tile
is the beginning of the full one, so only the widest is stored. The leaves' data is in entry bundles
(level -1): each entry after its length.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.ledger.merkle import (
    EMPTY_ROOT,
    HASH_BYTES,
    MAX_SIZE,
    ReadHash,
    Subtree,
    fold,
    leaf_hash,
    parents,
)

HEIGHT = 8
WIDTH = 1 << HEIGHT
FULL_BYTES = WIDTH * HASH_BYTES

ENTRIES = -1
"""Stands for the level of entry bundles, whose path says `entries` in its place."""


class TileId(NamedTuple):
    """Where a tile is: its level (0 to 63) and its number there, the `<N>` of its path."""

    level: int
    number: int


ReadTile = Callable[[TileId], bytes]
"""Reads the widest tile that is stored there; the `__getitem__` of a mapping will do."""


class Tile(NamedTuple):
    """A tile as it is asked for: its place, and how many hashes or entries of it (1 to 256)."""

    level: int
    number: int
    width: int = WIDTH

    @property
    def id(self) -> TileId:
        """Where it is stored."""
        return TileId(self.level, self.number)

    @property
    def path(self) -> str:
        """Its path below the log's prefix: `tile/<L>/<N>[.p/<W>]`, with N as `x001/x234/067`."""
        level = "entries" if self.level == ENTRIES else str(self.level)
        *above, last = [each.zfill(3) for each in f"{self.number:,}".split(",")]
        number = "/".join([*(f"x{each}" for each in above), last])
        partial = "" if self.width == WIDTH else f".p/{self.width}"
        return f"tile/{level}/{number}{partial}"


_PATH = re.compile(
    r"tile/(?P<level>entries|[0-9]{1,2})/(?P<above>(?:x[0-9]{3}/){0,6})(?P<last>[0-9]{3})"
    r"(?:\.p/(?P<width>[0-9]{1,3}))?"
)


def parse_path(path: str) -> Tile:
    """Read a path below the log's prefix, as `Tile.path` writes it.

    Raises ValueError for any other spelling, and for numbers beyond 2^63-1.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise ValueError("A tile's path is tile/<L>/<N> or tile/<L>/<N>.p/<W>, N as x001/x234/067.")
    level = ENTRIES if match["level"] == "entries" else int(match["level"])
    number = int(match["above"].replace("x", "").replace("/", "") + match["last"])
    tile = Tile(level, number, int(match["width"] or WIDTH))
    if level > 63 or number > MAX_SIZE or not 0 < tile.width <= WIDTH or tile.path != path:
        raise ValueError("A tile's path has level 0 to 63, width 1 to 255 and no superfluous zero.")
    return tile


def width(level: int, number: int, size: int) -> int:
    """Return how many hashes or entries a tile has in a tree of `size`: 0 to 256."""
    return min(max(_hashes(level, size) - number * WIDTH, 0), WIDTH)


def edge(size: int) -> list[Tile]:
    """Return the partial tiles of a tree of `size`, lowest level first; `grow` reads these."""
    found = []
    level = 0
    while count := _hashes(level, size):
        if count % WIDTH:
            found.append(Tile(level, count // WIDTH, count % WIDTH))
        level += 1
    return found


def cut(data: bytes, to: int) -> bytes:
    """Return the first `to` hashes of a tile. Raises ValueError if it has fewer."""
    if not 0 < to * HASH_BYTES <= len(data) <= FULL_BYTES or len(data) % HASH_BYTES:
        raise ValueError(f"A tile of {len(data)} bytes does not hold {to} hashes.")
    return data[: to * HASH_BYTES]


def holding(subtrees: Iterable[Subtree]) -> list[TileId]:
    """Return which tiles to fetch for the hashes of these complete subtrees, each once, sorted."""
    return sorted({_place(*each)[0] for each in subtrees})


def reader(read_tile: ReadTile) -> ReadHash:
    """Return a function that reads the hash of any complete subtree out of tiles.

    It raises ValueError where a tile is narrower than what is asked of it.
    """

    def read(level: int, number: int) -> bytes:
        where, first, count = _place(level, number)
        upto = cut(read_tile(where), first + count)
        return fold(upto[first * HASH_BYTES :])

    return read


def root(size: int, read_tile: ReadTile) -> bytes:
    """Return the root of the tree at `size`, which may be any up to the stored one.

    `read_tile` is asked for the tiles of `edge(size)`.
    """
    return _root_over([cut(read_tile(each.id), each.width) for each in edge(size)])


@dataclass(frozen=True)
class Growth:
    """A tree's growth: the tiles to store anew, and its roots before and after.

    `old_root` was computed from the stored tiles: if it is not the root of the last checkpoint,
    they were tampered with or damaged, and nothing may be signed.
    """

    old_root: bytes
    root: bytes
    changed: Mapping[TileId, bytes]


def grow(old_size: int, read_tile: ReadTile, leaf_hashes: Sequence[bytes]) -> Growth:
    """Append leaves to a tree of `old_size`.

    `read_tile` is asked for exactly the tiles of `edge(old_size)`, and must answer them as wide as
    they are there: a wider one was stored for a larger tree, which this would rewrite. Costs two
    hashes a leaf at most, the leaf's own not counted, and some hundreds for each level of tiles.
    Raises ValueError for such tiles, and for leaf hashes that have not 32 bytes.
    """
    if set(map(len, leaf_hashes)) - {HASH_BYTES}:
        raise ValueError(f"A leaf hash has {HASH_BYTES} bytes.")
    stored = {each.level: read_tile(each.id) for each in edge(old_size)}
    for each in edge(old_size):
        held = len(stored[each.level]) / HASH_BYTES
        if held != each.width:
            path = each.path.partition(".")[0]
            raise ValueError(f"{path} holds {held:g} hashes, not {each.width}.")
    grown: dict[TileId, bytes] = {}
    rests = []
    row = b"".join(leaf_hashes)
    new_size = old_size + len(leaf_hashes)
    level = 0
    while _hashes(level, new_size):
        before = stored.get(level, b"")
        if row:
            row = before + row
            first = _hashes(level, old_size) // WIDTH
            for number, start in enumerate(range(0, len(row), FULL_BYTES), first):
                grown[TileId(level, number)] = row[start : start + FULL_BYTES]
            full = len(row) - len(row) % FULL_BYTES
            rests.append(row[full:])
            row = row[:full]
            for _ in range(HEIGHT):
                row = parents(row)
        else:
            rests.append(before)
        level += 1
    old_root = _root_over(list(stored.values()))
    return Growth(old_root, _root_over(rests), grown)


MAX_ENTRY_BYTES = 0xFFFF
_LENGTH_BYTES = 2


def encode_entries(entries: Iterable[bytes]) -> bytes:
    """Write entries one behind the other. Raises ValueError for one of more than 65,535 bytes."""
    parts: list[bytes] = []
    for each in entries:
        if len(each) > MAX_ENTRY_BYTES:
            raise ValueError(f"An entry has {MAX_ENTRY_BYTES} bytes at most, not {len(each)}.")
        parts += (len(each).to_bytes(_LENGTH_BYTES, "big"), each)
    return b"".join(parts)


def parse_entries(bundle: bytes) -> list[bytes]:
    """Read all entries. Raises ValueError unless it is 1 to 256 of them and nothing else."""
    entries = []
    at, end = 0, len(bundle)
    # Of a whole log that is millions: no call that is not needed.
    while at + _LENGTH_BYTES <= end:
        start = at + _LENGTH_BYTES
        at = start + (bundle[at] << 8 | bundle[at + 1])
        entries.append(bundle[start:at])
    if at != end:
        raise ValueError("An entry bundle ends within an entry, or has too few.")
    if not 0 < len(entries) <= WIDTH:
        raise ValueError(f"An entry bundle has 1 to {WIDTH} entries, not {len(entries)}.")
    return entries


def cut_entries(bundle: bytes, to: int) -> bytes:
    """Return the bundle of the first `to` entries. Raises ValueError if it has fewer."""
    entries = parse_entries(bundle)
    if not 0 < to <= len(entries):
        raise ValueError(f"An entry bundle of {len(entries)} entries has no first {to}.")
    return encode_entries(entries[:to])


def grow_entries(old_size: int, last: bytes, entries: Sequence[bytes]) -> dict[int, bytes]:
    """Append entries to a log of `old_size`; return the bundles to store anew, by number.

    `last` is the stored partial bundle number old_size // 256, empty if there is none. Raises
    ValueError if it has not as many entries as the size says.
    """
    number, held = divmod(old_size, WIDTH)
    if (len(parse_entries(last)) if last else 0) != held:
        raise ValueError(f"Entry bundle {number} does not hold {held} entries.")
    grown = {}
    start = 0
    while start < len(entries):
        end = start + WIDTH - held
        grown[number] = last + encode_entries(entries[start:end])
        number, held, last, start = number + 1, 0, b"", end
    return grown


class Unproven(ValueError):
    """A stored tile does not belong to the tree; `tile` is the highest such tile."""

    def __init__(self, tile: Tile) -> None:
        super().__init__(f"{tile.path} does not belong to the tree.")
        self.tile = tile


def needed(where: TileId, size: int) -> list[TileId]:
    """Return the tiles that `proven` reads for a tile or entry bundle of the tree at `size`."""
    hashes = TileId(max(where.level, 0), where.number)
    above = {each.id for each in _ancestry(hashes, size)}
    return sorted({where, *above, *(each.id for each in edge(size))})


def proven(where: TileId, size: int, root_hash: bytes, read_tile: ReadTile) -> bytes:
    """Return a tile or entry bundle as wide as it is in the tree of this size and root.

    `where` is in that tree. Costs a hash for each hash of the tiles of `needed`. Raises `Unproven`.
    """
    try:
        found = root(size, read_tile)
    except (KeyError, ValueError):
        found = None
    if found != root_hash:
        raise Unproven(edge(size)[-1])
    # Each tile from the edge down to that of the hashes is held against the one above it.
    hashes = b""
    for tile in reversed(_ancestry(TileId(max(where.level, 0), where.number), size)):
        try:
            data = cut(read_tile(tile.id), tile.width)
        except (KeyError, ValueError):
            raise Unproven(tile) from None
        first = tile.number % WIDTH * HASH_BYTES
        if tile.width == WIDTH and fold(data) != hashes[first : first + HASH_BYTES]:
            raise Unproven(tile)
        hashes = data
    if where.level != ENTRIES:
        return hashes
    asked = Tile(*where, len(hashes) // HASH_BYTES)
    try:
        bundle = cut_entries(read_tile(where), asked.width)
    except (KeyError, ValueError):
        raise Unproven(asked) from None
    if b"".join(map(leaf_hash, parse_entries(bundle))) != hashes:
        raise Unproven(asked)
    return bundle


def _ancestry(where: TileId, size: int) -> list[Tile]:
    """Return a tile and those above it, up to the first partial one."""
    found = [Tile(*where, width(*where, size))]
    while found[-1].width == WIDTH:
        level, number = found[-1].level + 1, found[-1].number // WIDTH
        found.append(Tile(level, number, width(level, number, size)))
    return found


def _hashes(level: int, size: int) -> int:
    """Return how many hashes the tiles of a level hold together."""
    return size >> (HEIGHT * max(level, 0))


def _place(level: int, number: int) -> tuple[TileId, int, int]:
    """Return which tile a complete subtree is in, from which hash on, and how many they are."""
    tile_level, height = divmod(level, HEIGHT)
    tile, first = divmod(number << height, WIDTH)
    return TileId(tile_level, tile), first, 1 << height


def _root_over(rests: Sequence[bytes]) -> bytes:
    """Return the root over what each level holds in partial tiles, lowest level first."""
    found = b""
    for rest in rests:
        found = fold(rest + found)
    return found or EMPTY_ROOT
