"""The public part of the log: tiles, and proofs of inclusion and consistency, from stored tiles.

Each proof is verified against the checkpoint before it is returned, so damaged tiles give an error
and never a wrong proof.
"""

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from app.core.log import generations, publication, tile_rows
from app.core.log.generations import Generation
from app.core.log.publication import Published
from app.database import Tx, cursor
from app.errors import FieldError, Invalid, LogDamaged, LogPending, NotFound
from app.ledger import merkle, tiles
from app.ledger.merkle import ProofRefused, Subtree
from app.ledger.tiles import ENTRIES, TileId, Unproven

_LEAVES = """
SELECT leaf_hash, generation, leaf_index, data FROM log_leaves WHERE leaf_hash = ANY (%s)
"""
_INDEXES = """
SELECT leaf_hash, leaf_index FROM log_leaves AS l
  JOIN (SELECT generation, max(size) AS size FROM checkpoints
         WHERE note IS NOT NULL AND generation = (SELECT max(generation) FROM log_generations)
         GROUP BY generation) AS published
    ON l.generation = published.generation AND l.leaf_index < published.size
 WHERE l.leaf_hash = ANY (%s)
"""


@dataclass(frozen=True)
class Leaf:
    """A leaf that a published checkpoint covers: its place and its data."""

    index: int
    data: bytes


@dataclass(frozen=True)
class Inclusion:
    """A leaf's place and the path (RFC 9162 section 2.1.3) from it to the root at a size."""

    index: int
    leaf_hash: bytes
    size: int
    path: list[bytes]
    root: bytes


def published(tx: Tx, number: int | None = None) -> Published:
    """Return the last checkpoint of the log, or of a generation by its number.

    Raises `NotFound` without one, `LogDamaged` for one that is not as the log signed it.
    """
    generation = generations.newest(tx) if number is None else generations.numbered(tx, number)
    last = None if generation is None else publication.newest(tx, generation)
    if last is None:
        raise NotFound("There is no such log, or it has published nothing yet.")
    return last.intact()


def newest(tx: Tx) -> Published:
    """Return the log's last checkpoint. Raises `LogPending` while there is none, `LogDamaged`."""
    last = publication.current(tx)
    if last is None:
        raise LogPending("The log has published nothing yet.")
    return last.intact()


def tile(tx: Tx, last: Published, path: str) -> bytes:
    """Return a tile or entry bundle by its path (`tile/…`), proven by the published root.

    Raises `NotFound` beyond the published size, `LogDamaged` for what the root does not prove.
    """
    try:
        asked = tiles.parse_path(path)
    except ValueError as error:
        raise NotFound(str(error)) from None
    if asked.width > tiles.width(asked.level, asked.number, last.checkpoint.size):
        raise NotFound("The published log has no such tile, or a narrower one.")
    data = proven_tiles(tx, last, [asked.id])[asked.id]
    return (
        tiles.cut_entries(data, asked.width)
        if asked.level == ENTRIES
        else tiles.cut(data, asked.width)
    )


def proven_tiles(tx: Tx, last: Published, places: Collection[TileId]) -> dict[TileId, bytes]:
    """Return these tiles or entry bundles as wide as they are published, each proven by the root.

    Raises `LogDamaged` for what the root does not prove.
    """
    size, root = last.checkpoint.size, last.checkpoint.root
    wanted = {each for place in places for each in tiles.needed(place, size)}
    stored = tile_rows.read(tx, last.generation, wanted)
    try:
        return {each: tiles.proven(each, size, root, stored.__getitem__) for each in places}
    except Unproven as refused:
        raise LogDamaged(
            f"The stored {refused.tile.path} is not of the tree that was published at {size}, "
            f"and nothing is served that it would prove. {publication.MENDED_BY}"
        ) from None


def indexes(tx: Tx, leaf_hashes: Sequence[bytes]) -> dict[bytes, int]:
    """Return the place of each of these leaves that a published checkpoint covers."""
    rows = cursor(tx).execute(_INDEXES, (list(leaf_hashes),), binary=True)
    return dict(rows.fetchall())


def leaves(tx: Tx, last: Published, leaf_hashes: Sequence[bytes]) -> dict[bytes, Leaf | None]:
    """Return these leaves by their hashes, as far as there are any; None for one that waits."""
    found: dict[bytes, Leaf | None] = {}
    rows = cursor(tx).execute(_LEAVES, (list(leaf_hashes),), binary=True)
    for leaf_hash, generation, index, data in rows:
        if generation == last.generation.number and index < last.checkpoint.size:
            found[leaf_hash] = Leaf(index, data)
        else:
            found.setdefault(leaf_hash, None)
    return found


def index_of(tx: Tx, last: Published, leaf_hash: bytes) -> int:
    """Return the place of a leaf by its hash. Raises `LogPending`, or `NotFound` without one."""
    return _place(tx, last, leaf_hash).index


def index_of_record(tx: Tx, last: Published, leaf_hash: bytes) -> int:
    """Return the place of a record's leaf. Raises as `of_leaf` does."""
    return _of_record(tx, last, leaf_hash).index


def of_leaf(tx: Tx, last: Published, leaf_hash: bytes) -> dict[str, object]:
    """Return a record's leaf with its proof and checkpoint: the log-proof of docs/formats.md.

    Its checkpoint is `last`, with the log's own signature. Raises `LogPending` while that does not
    cover the leaf, `LogDamaged` if it is not there: a record and its leaf are committed together.
    """
    return at_checkpoints(tx, [(_of_record(tx, last, leaf_hash), last)])[0]


def at_checkpoints(tx: Tx, wanted: Sequence[tuple[Leaf, Published]]) -> list[dict[str, object]]:
    """Return log-proofs as `of_leaf` does, of leaves and checkpoints of one log.

    All are read at once. Raises `LogDamaged` if one is not proven.
    """
    if not wanted:
        return []
    hashes = [each for leaf, at in wanted for each in _hashes(leaf.index, at.checkpoint.size)]
    read = _reader(tx, wanted[0][1].generation, hashes)
    shown = []
    for leaf, at in wanted:
        found = _included(read, leaf.index, at.checkpoint.size, at.checkpoint.root)
        if merkle.leaf_hash(leaf.data) != found.leaf_hash:
            raise LogDamaged(f"The row of leaf {leaf.index} was changed. {publication.MENDED_BY}")
        proof = {
            "leaf_index": found.index,
            "leaf_data": b64encode(leaf.data).decode(),
            "leaf_hash": found.leaf_hash.hex(),
            "tree_size": found.size,
            "inclusion": [each.hex() for each in found.path],
            "checkpoint": at.note.decode(),
        }
        shown.append(proof)
    return shown


def inclusion(tx: Tx, last: Published, index: int, size: int) -> Inclusion:
    """Prove leaf `index` in the tree of `size`, at most the published one's."""
    _check_size(last, size, "size")
    if not 0 <= index < size:
        raise Invalid(FieldError("/index", f"A tree of size {size} has no such leaf."))
    read = _reader(tx, last.generation, _hashes(index, size))
    return _included(read, index, size, root(tx, last, size))


def consistency(tx: Tx, last: Published, old_size: int, new_size: int) -> list[bytes]:
    """Prove that the tree of `new_size`, at most the published one's, begins with the older."""
    _check_size(last, new_size, "to")
    if old_size > new_size:
        raise Invalid(FieldError("/from", "A tree does not begin with a larger one."))
    new_root = root(tx, last, new_size)
    # The older root comes from tiles too, but the proof verifies it.
    old_root = tile_rows.root(tx, last.generation, old_size)
    return _consistent(tx, last.generation, (old_size, old_root), (new_size, new_root))


def root(tx: Tx, last: Published, size: int) -> bytes:
    """Return the root at a size, proven by the published one. Raises `LogDamaged`."""
    newest = last.checkpoint
    if size in (newest.size, 0):
        return newest.root if size else merkle.EMPTY_ROOT
    # An older tree's root is signed nowhere here: it is proven by the one that is.
    found = tile_rows.root(tx, last.generation, size)
    _consistent(tx, last.generation, (size, found), (newest.size, newest.root))
    return found


def _consistent(
    tx: Tx, generation: Generation, old: tuple[int, bytes], new: tuple[int, bytes]
) -> list[bytes]:
    """Return the proof that one tree (size, root) begins with another, once it is verified."""
    read = _reader(tx, generation, merkle.consistency_subtrees(old[0], new[0]))
    with _proving():
        proof = merkle.consistency_proof(old[0], new[0], read)
        merkle.verify_consistency(old[0], new[0], proof, old[1], new[1])
    return proof


def _included(read: merkle.ReadHash, index: int, size: int, root: bytes) -> Inclusion:
    with _proving():
        path, leaf = merkle.inclusion_proof(index, size, read), read(0, index)
        merkle.verify_inclusion(leaf, index, size, path, root)
    return Inclusion(index, leaf, size, path, root)


@contextmanager
def _proving() -> Iterator[None]:
    try:
        yield
    except (KeyError, ProofRefused, ValueError):
        raise LogDamaged(
            f"The stored tiles do not prove what was published. {publication.MENDED_BY}"
        ) from None


def _place(tx: Tx, last: Published, leaf_hash: bytes) -> Leaf:
    found = leaves(tx, last, [leaf_hash])
    if leaf_hash not in found:
        raise NotFound("The log has no leaf with this hash.")
    leaf = found[leaf_hash]
    if leaf is None:
        raise LogPending(
            "No published checkpoint covers this leaf yet. The next one does: within seconds, or "
            "once its witnesses have cosigned it, where the service waits for them."
        )
    return leaf


def _of_record(tx: Tx, last: Published, leaf_hash: bytes) -> Leaf:
    try:
        return _place(tx, last, leaf_hash)
    except NotFound:
        raise LogDamaged(
            f"The row of leaf {leaf_hash.hex()} is missing. {publication.MENDED_BY}"
        ) from None


def _hashes(index: int, size: int) -> list[Subtree]:
    """Return what a proof of a leaf is made of, the leaf itself included."""
    return [Subtree(0, index), *merkle.inclusion_subtrees(index, size)]


def _check_size(last: Published, size: int, name: str) -> None:
    if size > last.checkpoint.size:
        raise Invalid(FieldError(f"/{name}", f"The published log has size {last.checkpoint.size}."))


def _reader(tx: Tx, generation: Generation, wanted: Iterable[Subtree]) -> merkle.ReadHash:
    return tiles.reader(tile_rows.read(tx, generation, tiles.holding(wanted)).__getitem__)
