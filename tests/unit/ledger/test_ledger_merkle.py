"""Merkle trees and proofs (RFC 9162) agree with its definitions and with CT's vectors."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tlog_scales.tlog import ConsistencyProof, InclusionProof

from app.ledger import merkle
from app.ledger.merkle import (
    EMPTY_ROOT,
    ProofRefused,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    verify_consistency,
    verify_inclusion,
)

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


# Every shape of a tree of up to seven levels, and those about the next power of two.
SMALL = [*range(1, 131), 255, 256, 257, MOST]


# The leaves and proofs of Certificate Transparency's own tests, which its implementations share.
CT_LEAVES = [
    bytes.fromhex(each)
    for each in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
CT_ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
CT_PROOFS = {
    (1, 8): (
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ),
    (6, 8): (
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (2, 5): (
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ),
}


def read_ct(level: int, number: int) -> bytes:
    if level == 0:
        return leaf_hash(CT_LEAVES[number])
    return node_hash(read_ct(level - 1, 2 * number), read_ct(level - 1, 2 * number + 1))


@pytest.mark.parametrize("size", range(9))
def test_the_roots_are_those_of_certificate_transparency(size: int) -> None:
    assert merkle.root(map(leaf_hash, CT_LEAVES[:size])).hex() == CT_ROOTS[size]


@pytest.mark.parametrize("sizes", CT_PROOFS)
def test_the_proofs_are_those_of_certificate_transparency(sizes: tuple[int, int]) -> None:
    proof = consistency_proof(*sizes, read_ct)
    assert [each.hex() for each in proof] == list(CT_PROOFS[sizes])


def test_the_root_is_what_the_rfc_defines() -> None:
    for size in range(MOST + 1):
        assert merkle.root(LEAVES[:size]) == root(size), size


def test_every_leaf_of_every_small_tree_is_proved() -> None:
    for size in SMALL:
        expected = root(size)
        for index in range(size):
            proof = inclusion_proof(index, size, read)
            verify_inclusion(LEAVES[index], index, size, proof, expected)
            InclusionProof(index, size, proof).check(LEAVES[index], expected)


def test_every_small_tree_is_proved_to_begin_with_every_smaller() -> None:
    for new in SMALL:
        for old in range(1, new + 1):
            proof = consistency_proof(old, new, read)
            verify_consistency(old, new, proof, root(old), root(new))
            ConsistencyProof(old, new, proof).check(root(old), root(new))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 256])
def test_an_empty_tree_comes_before_every_other(size: int) -> None:
    assert consistency_proof(0, size, read) == []
    verify_consistency(0, size, [], EMPTY_ROOT, root(size))
    with pytest.raises(ProofRefused):
        verify_consistency(0, size, [], LEAVES[0], root(size))
    with pytest.raises(ProofRefused):
        verify_consistency(0, size, [LEAVES[0]], EMPTY_ROOT, root(size))


def test_what_the_documentation_shows_checks_an_inclusion() -> None:
    formats = Path(__file__).parents[3] / "docs" / "formats.md"
    document = formats.read_text(encoding="utf-8")
    shown = next(each for each in document.split("```python\n") if "def included(" in each)
    names: dict[str, Callable[..., bool]] = {}
    exec(shown.partition("```")[0], names)
    included = names["included"]
    for size in (1, 2, 5, 8, 37):
        leaves = [str(number).encode() for number in range(size)]
        for index, data in enumerate(leaves):
            proof = inclusion_proof(index, size, read)
            assert included(data, index, size, proof, root(size))
            assert not included(data, index, size, [*proof, LEAVES[0]], root(size))
            assert not included(data, index + size, size, proof, root(size))
            assert not included(b"other", index, size, proof, root(size))
            assert not included(data, index, size, proof[1:], root(size)) or not proof


# Proofs that are changed, of another length, place or size.

SIZES = st.integers(1, MOST).flatmap(
    lambda size: st.tuples(st.integers(0, size - 1), st.just(size))
)


def flipped(hashes: Sequence[bytes], bit: int) -> list[bytes]:
    """The same hashes but for one bit, counted through all of them."""
    number, place = divmod(bit % (256 * len(hashes)), 256)
    changed = (int.from_bytes(hashes[number], "big") ^ 1 << place).to_bytes(32, "big")
    return [*hashes[:number], changed, *hashes[number + 1 :]]


@given(SIZES, st.integers(0, 2**12))
def test_a_proof_with_one_bit_flipped_is_refused(at: tuple[int, int], bit: int) -> None:
    index, size = at
    old, seen = index + 1, [LEAVES[index], *inclusion_proof(index, size, read), root(size)]
    leaf, *proof, expected = flipped(seen, bit)
    with pytest.raises(ProofRefused):
        verify_inclusion(leaf, index, size, proof, expected)
    seen = [root(old), *consistency_proof(old, size, read), root(size)]
    first, *proof, second = flipped(seen, bit)
    with pytest.raises(ProofRefused):
        verify_consistency(old, size, proof, first, second)


@given(SIZES, st.data())
def test_a_proof_of_another_length_is_refused(at: tuple[int, int], data: st.DataObject) -> None:
    index, size = at
    old = index + 1
    inclusion = partial(verify_inclusion, LEAVES[index], index, size, root_hash=root(size))
    consistency = partial(verify_consistency, old, size, old_root=root(old), new_root=root(size))
    for verify, proof in (
        (inclusion, inclusion_proof(index, size, read)),
        (consistency, consistency_proof(old, size, read)),
    ):
        place = data.draw(st.integers(0, len(proof)))
        longer = [*proof[:place], LEAVES[0], *proof[place:]]
        for wrong in [longer, *([proof[:-1], proof[1:]] if proof else [])]:
            with pytest.raises(ProofRefused):
                verify(proof=wrong)


@given(SIZES, SIZES)
def test_a_proof_for_another_place_or_size_is_refused(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    proof = inclusion_proof(*one, read)
    if one == other:
        return
    with pytest.raises(ProofRefused):
        verify_inclusion(LEAVES[one[0]], other[0], other[1], proof, root(other[1]))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_what_has_not_the_size_of_a_hash_is_refused(length: int) -> None:
    proof = inclusion_proof(0, 2, read)
    odd = bytes(length)
    for leaf, siblings, expected in (
        (odd, proof, root(2)),
        (LEAVES[0], [odd], root(2)),
        (LEAVES[0], proof, odd),
    ):
        with pytest.raises(ProofRefused, match="32 bytes"):
            verify_inclusion(leaf, 0, 2, siblings, expected)
    with pytest.raises(ProofRefused, match="32 bytes"):
        verify_consistency(1, 2, [odd], root(1), root(2))


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0), (5, -1)])
def test_a_leaf_outside_the_tree_has_no_proof(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="has no leaf"):
        inclusion_proof(index, size, read)
    with pytest.raises(ProofRefused, match="has no leaf"):
        verify_inclusion(LEAVES[0], index, size, [], LEAVES[0])


@pytest.mark.parametrize(("old", "new"), [(-1, 3), (4, 3), (0, -1)])
def test_a_tree_does_not_begin_with_a_larger_one(old: int, new: int) -> None:
    with pytest.raises(ValueError, match="never had size"):
        consistency_proof(old, new, read)
    with pytest.raises(ProofRefused, match="never had size"):
        verify_consistency(old, new, [], EMPTY_ROOT, EMPTY_ROOT)
