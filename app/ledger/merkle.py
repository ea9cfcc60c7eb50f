"""The Merkle tree of RFC 9162 section 2.1: hashes, proofs, their verification, and its frontier.

A complete subtree spans 2^level leaves from a multiple of 2^level on, and is named (level, number).
Its hash never changes, so proofs are generated from any function that reads such hashes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()
"""The root of a tree without leaves (RFC 9162 section 2.1.1)."""

MAX_SIZE = 2**63 - 1
"""The most leaves a tree may have here, so that sizes fit a signed 64-bit integer everywhere."""


class Subtree(NamedTuple):
    """A complete subtree: of 2^level leaves, the one that begins at leaf number * 2^level."""

    level: int
    number: int


ReadHash = Callable[[int, int], bytes]
"""Reads the hash (32 bytes) of the complete subtree of this level and number."""


class ProofRefused(ValueError):
    """A proof does not show what it is said to show."""


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of one leaf: SHA-256(0x00 ‖ data)."""
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of the node over two hashes: SHA-256(0x01 ‖ left ‖ right)."""
    return sha256(b"\x01" + left + right).digest()


def parents(row: bytes) -> bytes:
    """Return the hashes of the nodes one level up; `row` is an even number of hashes, joined."""
    # Ten million times a day, so one call and one concatenation each.
    return b"".join([sha256(b"\x01" + row[at : at + 64]).digest() for at in range(0, len(row), 64)])


def fold(row: bytes) -> bytes:
    """Return the root over hashes joined in `row`; nothing over nothing.

    The last hash of an odd row has no sibling and moves up as it is. That gives the same tree as
    the RFC's split at the largest power of two, and may be repeated: the last hash may itself stand
    for a tree smaller than those that the others stand for.
    """
    while len(row) > HASH_BYTES:
        odd = len(row) % (2 * HASH_BYTES)
        row = parents(row[: len(row) - odd]) + row[len(row) - odd :]
    return row


def root(leaf_hashes: Iterable[bytes]) -> bytes:
    """Return the root over these leaf hashes (RFC 9162 section 2.1.1)."""
    return fold(b"".join(leaf_hashes)) or EMPTY_ROOT


def inclusion_proof(index: int, size: int, read: ReadHash) -> list[bytes]:
    """Return the path from leaf `index` to the root at `size` (section 2.1.3.1), leaf's end first.

    Raises ValueError unless 0 <= index < size.
    """
    return [_hash_of(each, read) for each in _inclusion_ranges(index, size)]


def path_within(row: bytes, index: int) -> list[bytes]:
    """Return the path from hash `index` of those joined in `row` to their root.

    The last hash may stand for a smaller tree than the others, as in `fold`.
    """

    def read(level: int, number: int) -> bytes:
        return fold(row[number << level + 5 : number + 1 << level + 5])

    return inclusion_proof(index, len(row) // HASH_BYTES, read)


def inclusion_subtrees(index: int, size: int) -> list[Subtree]:
    """Return the complete subtrees whose hashes `inclusion_proof` will read."""
    return _cut(_inclusion_ranges(index, size))


def consistency_proof(old_size: int, new_size: int, read: ReadHash) -> list[bytes]:
    """Return the proof that the tree at `new_size` begins with that at `old_size` (2.1.4.1).

    It is empty where there is nothing to prove: from an empty tree, and from a size to itself.
    Raises ValueError unless 0 <= old_size <= new_size.
    """
    return [_hash_of(each, read) for each in _consistency_ranges(old_size, new_size)]


def consistency_subtrees(old_size: int, new_size: int) -> list[Subtree]:
    """Return the complete subtrees whose hashes `consistency_proof` will read."""
    return _cut(_consistency_ranges(old_size, new_size))


class _Range(NamedTuple):
    """The leaves from `start` up to but without `end`, as the RFC's D[start:end]."""

    start: int
    end: int

    def halves(self) -> "tuple[_Range, _Range]":
        """Split at the largest power of two smaller than the number of leaves, two at least."""
        middle = self.start + (1 << (self.end - self.start - 1).bit_length() - 1)
        return _Range(self.start, middle), _Range(middle, self.end)


def _inclusion_ranges(index: int, size: int) -> list[_Range]:
    if not 0 <= index < size:
        raise ValueError(f"A tree of size {size} has no leaf {index}.")
    siblings = []
    here = _Range(0, size)
    while here.end - here.start > 1:
        left, right = here.halves()
        here, sibling = (left, right) if index < left.end else (right, left)
        siblings.append(sibling)
    return siblings[::-1]


def _consistency_ranges(old_size: int, new_size: int) -> list[_Range]:
    if not 0 <= old_size <= new_size:
        raise ValueError(f"A tree of size {new_size} never had size {old_size}.")
    ranges: list[_Range] = []
    if old_size == 0:
        return ranges
    here = _Range(0, new_size)
    while here.end != old_size:
        left, right = here.halves()
        here, sibling = (left, right) if old_size <= left.end else (right, left)
        ranges.append(sibling)
    # A range from leaf 0 is the old tree itself, whose root the verifier has.
    if here.start > 0:
        ranges.append(here)
    return ranges[::-1]


def subtrees(start: int, end: int) -> Iterator[Subtree]:
    """Cut the leaves from `start` up to but without `end` into complete subtrees, in order."""
    while start < end:
        level = (end - start).bit_length() - 1
        if start:
            level = min(level, (start & -start).bit_length() - 1)
        yield Subtree(level, start >> level)
        start += 1 << level


def _cut(ranges: Iterable[_Range]) -> list[Subtree]:
    return [each for leaves in ranges for each in subtrees(*leaves)]


def _hash_of(leaves: _Range, read: ReadHash) -> bytes:
    *others, smallest = subtrees(*leaves)
    found = read(*smallest)
    for each in reversed(others):
        found = node_hash(read(*each), found)
    return found


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root_hash: bytes
) -> None:
    """Check that the leaf with hash `leaf` is number `index` of the tree (RFC 9162, 2.1.3.2).

    Raises ProofRefused if it is not shown.
    """
    _check_hashes(leaf, root_hash, *proof)
    if not 0 <= index < size:
        raise ProofRefused(f"A tree of size {size} has no leaf {index}.")
    found = leaf
    for on_left, sibling in _zipped(_sides(index, size - 1), proof):
        found = node_hash(sibling, found) if on_left else node_hash(found, sibling)
    _check_root(size, found, root_hash)


def verify_consistency(
    old_size: int, new_size: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes
) -> None:
    """Check that the new tree begins with the old one (RFC 9162 section 2.1.4.2).

    An empty tree comes before every other, and each tree before itself; both by an empty proof,
    which the RFC leaves out. Raises ProofRefused if it is not shown.
    """
    _check_hashes(old_root, new_root, *proof)
    if not 0 <= old_size <= new_size:
        raise ProofRefused(f"A tree of size {new_size} never had size {old_size}.")
    if old_size in (0, new_size):
        if proof:
            raise ProofRefused(f"From size {old_size} to {new_size} a proof has no hashes.")
        roots = {old_root} | ({EMPTY_ROOT} if old_size == 0 else set())
        if len(roots | ({new_root} if old_size == new_size else set())) > 1:
            raise ProofRefused(f"Two trees of size {old_size} have different roots.")
        return
    # A complete old tree is itself where the path begins, and the proof leaves it out.
    path = [old_root, *proof] if old_size & (old_size - 1) == 0 else proof
    if not path:
        raise ProofRefused("The proof is empty.")
    found_old = found_new = path[0]
    # The path begins with the largest complete subtree that ends where the old tree ended.
    level = (old_size & -old_size).bit_length() - 1
    sides = _sides((old_size - 1) >> level, (new_size - 1) >> level)
    for on_left, each in _zipped(sides, path[1:]):
        if on_left:
            found_old, found_new = node_hash(each, found_old), node_hash(each, found_new)
        else:
            found_new = node_hash(found_new, each)
    _check_root(old_size, found_old, old_root)
    _check_root(new_size, found_new, new_root)


def _sides(fn: int, sn: int) -> Iterator[bool]:
    """Climb from node `fn` of a row that ends with node `sn` (the RFC's names) to the root.

    Yields for each sibling met whether it is on the left.
    """
    while sn:
        on_left = bool(fn & 1) or fn == sn
        yield on_left
        # On the right edge a node without a sibling moves up as it is.
        while on_left and not fn & 1:
            fn, sn = fn >> 1, sn >> 1
        fn, sn = fn >> 1, sn >> 1


def _zipped(sides: Iterator[bool], proof: Sequence[bytes]) -> Iterator[tuple[bool, bytes]]:
    needed = list(sides)
    if len(needed) != len(proof):
        raise ProofRefused("The proof has too few or too many hashes.")
    return zip(needed, proof, strict=True)


def _check_hashes(*hashes: bytes) -> None:
    for each in hashes:
        if len(each) != HASH_BYTES:
            raise ProofRefused(f"A hash has {HASH_BYTES} bytes, not {len(each)}.")


def _check_root(size: int, found: bytes, expected: bytes) -> None:
    if found != expected:
        raise ProofRefused(f"The proof leads to another root than the one given for size {size}.")


class Frontier:
    """A growing tree by the roots of its complete subtrees, largest first.

    One hash for each bit of its size: all that is needed to append and to tell the root.
    """

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
