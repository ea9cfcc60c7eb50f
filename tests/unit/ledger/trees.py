"""A tree of 300 leaves, and what its proofs read."""

from functools import cache
from hashlib import sha256

from app.ledger.merkle import leaf_hash

MOST = 300
LEAVES = [leaf_hash(str(number).encode()) for number in range(MOST)]


def split(count: int) -> int:
    """The RFC's k: the largest power of two smaller than n."""
    k = 1
    while k * 2 < count:
        k *= 2
    return k


@cache
def mth(start: int, end: int) -> bytes:
    """RFC 9162 section 2.1.1, over D[start:end]."""
    if start == end:
        return sha256(b"").digest()
    if end - start == 1:
        return LEAVES[start]
    k = split(end - start)
    return sha256(b"\x01" + mth(start, start + k) + mth(start + k, end)).digest()


def read(level: int, number: int) -> bytes:
    """The hash of a complete subtree, as `ReadHash`."""
    return mth(number << level, (number + 1) << level)


def root(size: int) -> bytes:
    return mth(0, size)
