"""The frontier of a growing Merkle tree (RFC 9162): the roots of its complete subtrees.

One hash for each bit of the size, largest subtree first: all that is needed to append and to tell
the root, in memory that does not grow with the tree.
"""

from collections.abc import Iterable, Iterator

from app.ledger.merkle import EMPTY_ROOT, Subtree, node_hash


class Frontier:
    """A tree of `size` leaves by the roots of its complete subtrees, largest first."""

    def __init__(self, size: int = 0, hashes: Iterable[bytes] = ()) -> None:
        """Raises ValueError unless there is a hash for each bit of the size."""
        self.size = size
        self.hashes = list(hashes)
        if len(self.hashes) != size.bit_count():
            raise ValueError(f"A tree of {size} leaves has {size.bit_count()} complete subtrees.")

    def append(self, node: bytes, level: int = 0) -> None:
        """Append a complete subtree of 2^level leaves; the size is a multiple of that."""
        if self.size % (1 << level):
            raise ValueError("A subtree begins at a multiple of its leaves.")
        held = self.size >> level
        while held & 1:
            node = node_hash(self.hashes.pop(), node)
            held >>= 1
        self.hashes.append(node)
        self.size += 1 << level

    @property
    def root(self) -> bytes:
        """The root of the whole tree (RFC 9162 section 2.1.1)."""
        *others, found = self.hashes or [EMPTY_ROOT]
        for each in reversed(others):
            found = node_hash(each, found)
        return found


def between(start: int, end: int) -> Iterator[Subtree]:
    """Cut the leaves from `start` up to but without `end` into what `append` takes, in order."""
    while start < end:
        level = (end - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        yield Subtree(level, start >> level)
        start += 1 << level
