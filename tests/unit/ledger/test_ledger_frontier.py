"""The root of a tree that is read row by row: at every size what the whole tree has."""

import pytest

from app.ledger import merkle
from app.ledger.frontier import Frontier
from app.ledger.merkle import EMPTY_ROOT
from app.ledger.tiles import WIDTH

HASHES = [merkle.leaf_hash(b"%d" % number) for number in range(5 * WIDTH + 3)]


def row(number: int) -> bytes:
    return b"".join(HASHES[number * WIDTH : (number + 1) * WIDTH])


@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 257, 511, 512, 513, 768, 1023, 1280, 1283])
def test_every_size_that_is_passed_has_the_root_of_the_whole_tree(size: int) -> None:
    tree = Frontier()
    for number in range(size // WIDTH):
        tree.append(row(number))
    rest = b"".join(HASHES[tree.size : size])
    assert tree.root(rest) == merkle.root(HASHES[:size])
    assert (tree.root() == EMPTY_ROOT) == (size < WIDTH)


@pytest.mark.parametrize("rows", range(6))
def test_a_tree_that_begins_with_the_roots_of_its_parts_grows_alike(rows: int) -> None:
    begun = rows * WIDTH
    hashes = [
        merkle.root(HASHES[number << level : number + 1 << level])
        for level, number in merkle.subtrees(0, begun)
    ]
    tree = Frontier(begun, hashes)
    for number in range(rows, 5):
        tree.append(row(number))
    assert tree.root(b"".join(HASHES[5 * WIDTH :])) == merkle.root(HASHES)


def test_rows_are_whole() -> None:
    with pytest.raises(ValueError, match="256"):
        Frontier(257, [bytes(32)] * 2)
    with pytest.raises(ValueError, match="256"):
        Frontier().append(bytes(64))
