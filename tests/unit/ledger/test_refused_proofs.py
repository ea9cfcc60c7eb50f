"""Proofs that are changed, of another length, place or size are refused."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.merkle import (
    EMPTY_ROOT,
    ProofRefused,
    consistency_proof,
    inclusion_proof,
    verify_consistency,
    verify_inclusion,
)
from tests.unit.ledger.trees import LEAVES, MOST, read, root

SIZES = st.integers(1, MOST).flatmap(
    lambda size: st.tuples(st.integers(0, size - 1), st.just(size))
)


def flipped(hashes: Sequence[bytes], bit: int) -> list[bytes]:
    """The same hashes but for one bit, counted through all of them."""
    number, place = divmod(bit % (256 * len(hashes)), 256)
    changed = (int.from_bytes(hashes[number], "big") ^ 1 << place).to_bytes(32, "big")
    return [*hashes[:number], changed, *hashes[number + 1 :]]


@given(SIZES, st.integers(0, 2**12))
def test_an_inclusion_proof_with_one_bit_flipped_is_refused(at: tuple[int, int], bit: int) -> None:
    index, size = at
    leaf, *proof, expected = flipped(
        [LEAVES[index], *inclusion_proof(index, size, read), root(size)], bit
    )
    with pytest.raises(ProofRefused):
        verify_inclusion(leaf, index, size, proof, expected)


@given(SIZES, st.integers(0, 2**12))
def test_a_consistency_proof_with_one_bit_flipped_is_refused(at: tuple[int, int], bit: int) -> None:
    old, new = at[0] + 1, at[1]
    first, *proof, second = flipped([root(old), *consistency_proof(old, new, read), root(new)], bit)
    with pytest.raises(ProofRefused):
        verify_consistency(old, new, proof, first, second)


@given(SIZES, st.data())
def test_a_proof_of_another_length_is_refused(at: tuple[int, int], data: st.DataObject) -> None:
    index, size = at
    proof = inclusion_proof(index, size, read)
    place = data.draw(st.integers(0, len(proof)))
    longer = [*proof[:place], LEAVES[0], *proof[place:]]
    for wrong in [longer, *([proof[:-1], proof[1:]] if proof else [])]:
        with pytest.raises(ProofRefused):
            verify_inclusion(LEAVES[index], index, size, wrong, root(size))
    old = index + 1
    proof = consistency_proof(old, size, read)
    place = data.draw(st.integers(0, len(proof)))
    longer = [*proof[:place], LEAVES[0], *proof[place:]]
    for wrong in [longer, *([proof[:-1], proof[1:]] if proof else [])]:
        with pytest.raises(ProofRefused):
            verify_consistency(old, size, wrong, root(old), root(size))


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


def test_two_trees_of_one_size_have_one_root() -> None:
    with pytest.raises(ProofRefused, match="different roots"):
        verify_consistency(5, 5, [], root(5), root(6))
