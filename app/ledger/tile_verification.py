"""Proves that a stored tile belongs to a published root.

The partial tiles of a tree give its root (RFC 9162 section 2.1.1), which proves them. The root of a
full tile is a hash in the tile above, which proves it.
"""

from app.ledger import entry_bundles, tiles
from app.ledger.merkle import HASH_BYTES, fold, leaf_hash
from app.ledger.tiles import ENTRIES, WIDTH, ReadTile, Tile, TileId


class Unproven(ValueError):
    """A stored tile does not belong to the tree; `tile` is the highest such tile."""

    def __init__(self, tile: Tile) -> None:
        super().__init__(f"{tile.path} does not belong to the tree.")
        self.tile = tile


def needed(where: TileId, size: int) -> list[TileId]:
    """Return the tiles that `proven` reads for a tile or entry bundle of the tree at `size`."""
    hashes = TileId(max(where.level, 0), where.number)
    above = {each.id for each in _ancestry(hashes, size)}
    return sorted({where, *above, *(each.id for each in tiles.edge(size))})


def proven(where: TileId, size: int, root: bytes, read_tile: ReadTile) -> bytes:
    """Return a tile or entry bundle as wide as it is in the tree of this size and root.

    `where` is in that tree. Costs a hash for each hash of the tiles of `needed`. Raises `Unproven`.
    """
    try:
        found = tiles.root(size, read_tile)
    except (KeyError, ValueError):
        found = None
    if found != root:
        raise Unproven(tiles.edge(size)[-1])
    # Each tile from the edge down to that of the hashes is held against the one above it.
    hashes = b""
    for tile in reversed(_ancestry(TileId(max(where.level, 0), where.number), size)):
        try:
            data = tiles.cut(read_tile(tile.id), tile.width)
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
        bundle = entry_bundles.cut(read_tile(where), asked.width)
    except (KeyError, ValueError):
        raise Unproven(asked) from None
    if b"".join(map(leaf_hash, entry_bundles.parse(bundle))) != hashes:
        raise Unproven(asked)
    return bundle


def _ancestry(where: TileId, size: int) -> list[Tile]:
    """Return a tile and those above it, up to the first partial one."""
    found = [Tile(*where, tiles.width(*where, size))]
    while found[-1].width == WIDTH:
        level, number = found[-1].level + 1, found[-1].number // WIDTH
        found.append(Tile(level, number, tiles.width(level, number, size)))
    return found
