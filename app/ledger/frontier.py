"""The root of a tree that is streamed from first leaf to last, in constant memory.

Leaves come in rows of 256, as in entry bundles. The frontier is the roots of the largest complete
subtrees (RFC 9162 section 2.1), so each size passed has its root, without stored hashes.
"""

from app.ledger.merkle import EMPTY_ROOT, HASH_BYTES, fold, node_hash, subtrees
from app.ledger.tiles import HEIGHT, WIDTH


class Frontier:
    """A tree of `size` leaves, which grows by whole rows."""

    def __init__(self, size: int = 0, hashes: list[bytes] | None = None) -> None:
        """Begin with the tree whose `subtrees(0, size)` have these hashes; 256 divides `size`.

        Raises ValueError for another size.
        """
        if size % WIDTH:
            raise ValueError(f"Rows have {WIDTH} leaves, and {size} is not a number of them.")
        self.size = size
        levels = [each.level for each in subtrees(0, size)]
        self._peaks = list(zip(levels, hashes or [], strict=True))

    def append(self, row: bytes) -> bytes:
        """Add the hashes of 256 leaves, joined; return the root over them.

        Raises ValueError for fewer or more.
        """
        if len(row) != WIDTH * HASH_BYTES:
            raise ValueError(f"A row has {WIDTH} hashes, not {len(row) / HASH_BYTES:g}.")
        level, found = HEIGHT, fold(row)
        of_row = found
        while self._peaks and self._peaks[-1][0] == level:
            found = node_hash(self._peaks.pop()[1], found)
            level += 1
        self._peaks.append((level, found))
        self.size += WIDTH
        return of_row

    def root(self, rest: bytes = b"") -> bytes:
        """Return the root over all leaves so far and, behind them, those hashed in `rest`."""
        found = fold(rest)
        for _, peak in reversed(self._peaks):
            found = node_hash(peak, found) if found else peak
        return found or EMPTY_ROOT
