"""The tiles of a tree that is streamed from first leaf to last, a few in memory."""

from collections.abc import Iterator

from app.ledger.merkle import fold
from app.ledger.tiles import FULL_BYTES, TileId


class TileStream:
    """Takes leaf hashes by whole rows of 256, and yields each tile as wide as it gets."""

    def __init__(self) -> None:
        # Of each level the hashes of the tile that is not full, and that tile's number.
        self._open: list[tuple[bytes, int]] = [(b"", 0)]

    def append(self, row: bytes, root: bytes) -> Iterator[tuple[TileId, bytes]]:
        """Add the hashes of 256 leaves, joined, whose `fold` is `root`; yield what is full."""
        number = self._open[0][1]
        self._open[0] = (b"", number + 1)
        yield TileId(0, number), row
        level = 1
        while root:
            if level == len(self._open):
                self._open.append((b"", 0))
            held, number = self._open[level]
            held, root = held + root, b""
            if len(held) == FULL_BYTES:
                yield TileId(level, number), held
                held, number, root = b"", number + 1, fold(held)
            self._open[level] = (held, number)
            level += 1

    def partial(self, rest: bytes = b"") -> Iterator[tuple[TileId, bytes]]:
        """Yield the partial tiles of the tree; `rest` are the hashes of leaves behind the rows."""
        for level, (held, number) in enumerate([(rest, self._open[0][1]), *self._open[1:]]):
            if held:
                yield TileId(level, number), held
