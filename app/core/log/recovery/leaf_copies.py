"""Restores a log's leaves from their copies: the row in `log_leaves`, the entry bundle, the tile.

Data is in the row and the entry bundle, its hash in a tile of level 0. Where they differ two of the
three decide; the tree's root shows whether they were right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from app import ids
from app.core.log import tile_rows
from app.core.log.generations import Generation
from app.database import cursor, database_now
from app.errors import LogDamaged
from app.ledger import entry_bundles, leaves
from app.ledger.merkle import HASH_BYTES, leaf_hash
from app.ledger.tiles import ENTRIES, WIDTH, TileId
from app.lib import canonical_json

_AT_ONCE = 64

_ROWS = """
SELECT leaf_index, leaf_hash, data FROM log_leaves
 WHERE generation = %b AND leaf_index >= %b AND leaf_index < %b
"""
_BY_HASH = "SELECT leaf_hash, data FROM log_leaves WHERE leaf_hash = ANY (%b)"
_ELSEWHERE = """
SELECT leaf_hash FROM log_leaves
 WHERE leaf_hash = ANY (%b) AND generation = %b AND leaf_index < %b AND leaf_index <> ALL (%b)
"""
_BEYOND = """
SELECT leaf_index, leaf_hash, data FROM log_leaves
 WHERE generation = %b AND leaf_index >= %b ORDER BY leaf_index LIMIT 4096
"""
_DROP = "DELETE FROM log_leaves WHERE generation = %b AND leaf_index = ANY (%b)"
_FREE = """
UPDATE log_leaves SET generation = NULL, leaf_index = NULL
 WHERE generation = %b AND leaf_index = ANY (%b)
"""
_PUT = """
INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)
SELECT id, leaf_hash, data, %b, leaf_index
  FROM unnest(%b::uuid[], %b::bytea[], %b::bytea[], %b::bigint[])
       AS t (id, leaf_hash, data, leaf_index)
    ON CONFLICT (leaf_hash) DO UPDATE
   SET data = excluded.data, generation = excluded.generation, leaf_index = excluded.leaf_index
"""


@dataclass
class BundleCopy:
    """The leaves of one entry bundle: the index of the first, their data, and their hashes joined.

    `wrong` are the indexes whose row in `log_leaves` is another's, `missing` those without a row;
    `astray` are the wrong ones that are leaves, at a place that is not theirs.
    """

    first: int
    data: list[bytes]
    hashes: bytes
    wrong: list[int] = field(default_factory=list)
    astray: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


def rows(
    session: Session, generation: Generation, size: int, *, placed: bool
) -> Iterator[BundleCopy]:
    """Yield the leaves of a log up to `size`, 256 at a time.

    `placed` says whether its leaves have their places in `log_leaves`; those of a log that has
    ended have them in its successor. Raises `LogDamaged` for a leaf without any copy.
    """
    count = -(-size // WIDTH)
    for start in range(0, count, _AT_ONCE):
        stop = min(start + _AT_ONCE, count)
        places = [TileId(level, number) for number in range(start, stop) for level in (ENTRIES, 0)]
        stored = tile_rows.read(session, generation, places)
        filed: dict[int, tuple[bytes, bytes]] = {}
        if placed:
            values = (generation.number, start * WIDTH, min(stop * WIDTH, size))
            found = cursor(session).execute(_ROWS, values, binary=True)
            filed = {index: (digest, data) for index, digest, data in found}
        for number in range(start, stop):
            first = number * WIDTH
            bundle = entries(stored.get(TileId(ENTRIES, number), b""))
            tile = stored.get(TileId(0, number), b"")
            copies = _Copies(first, min(size - first, WIDTH), filed, bundle, tile)
            data = _in_bundle(copies) or _voted(session, generation, copies)
            row = BundleCopy(first, data, b"".join(map(leaf_hash, data)))
            if placed:
                _compare(session, generation, copies, row, size)
            yield row


def beyond(session: Session, generation: Generation, size: int, *, repair: bool) -> int:
    """Return how many rows have a place beyond a log's end; with `repair` none has.

    A leaf among them waits then: for its own place if the log has it, else for the next.
    """
    cur, found, start = cursor(session), 0, size
    while strays := cur.execute(_BEYOND, (generation.number, start), binary=True).fetchall():
        found += len(strays)
        start = strays[-1][0] + 1
        if repair:
            good = [index for index, digest, data in strays if _is_leaf(digest, data)]
            cur.execute(_FREE, (generation.number, good))
            cur.execute(_DROP, (generation.number, [index for index, _, _ in strays]))
    return found


def restore(session: Session, generation: Generation, row: BundleCopy) -> None:
    """Put the right rows of `log_leaves` in the place of those that are wrong or missing."""
    cur = cursor(session)
    # A leaf that has no place waits for one: it may be a record's that the log has not seen.
    cur.execute(_FREE, (generation.number, row.astray))
    cur.execute(_DROP, (generation.number, row.wrong))
    wanted = sorted({*row.wrong, *row.missing})
    data = {row.data[index - row.first]: index for index in wanted}
    now = database_now(session)
    columns = (
        [ids.new(now) for _ in data],
        [leaf_hash(each) for each in data],
        list(data),
        list(data.values()),
    )
    cur.execute(_PUT, (generation.number, *columns))


@dataclass(frozen=True)
class _Copies:
    """The stored rows of one entry bundle's leaves, by index or by offset in it."""

    first: int
    width: int
    filed: Mapping[int, tuple[bytes, bytes]]
    entries: Sequence[bytes]
    tile: bytes

    def data(self, offset: int) -> bytes | None:
        """Return a leaf's data, as its tile has it if one of the copies is that."""
        filed = self.filed.get(self.first + offset)
        known = [] if filed is None else [filed[1]]
        known += self.entries[offset : offset + 1]
        digest = self.hash_in_tile(offset)
        return next((each for each in known if leaf_hash(each) == digest), (*known, None)[0])

    def hash_in_tile(self, offset: int) -> bytes:
        """Return the hash that the tile of level 0 has of a leaf."""
        return self.tile[offset * HASH_BYTES : (offset + 1) * HASH_BYTES]


def _in_bundle(copies: _Copies) -> list[bytes]:
    """Return the leaves of the entry bundle if the tile has all their hashes, which decides."""
    data = list(copies.entries[: copies.width])
    hashes = b"".join(map(leaf_hash, data))
    agree = len(data) == copies.width and hashes == copies.tile[: len(hashes)]
    return data if agree else []


def _voted(session: Session, generation: Generation, copies: _Copies) -> list[bytes]:
    """Return each leaf as most of its copies have it. Raises `LogDamaged` for one without any."""
    known = [copies.data(offset) for offset in range(copies.width)]
    lost = {
        copies.hash_in_tile(offset): offset for offset, each in enumerate(known) if each is None
    }
    for digest, data in _by_hash(session, list(lost)).items():
        known[lost[digest]] = data
    if None in known:
        index = copies.first + known.index(None)
        raise LogDamaged(f"Leaf {index} of {generation.origin} is lost: no copy of it is left.")
    return [each for each in known if each is not None]


def _compare(
    session: Session, generation: Generation, copies: _Copies, row: BundleCopy, size: int
) -> None:
    """Note which rows of `log_leaves` are not as they have to be."""
    missing = {}
    for index, data in enumerate(row.data, row.first):
        at = (index - row.first) * HASH_BYTES
        digest = row.hashes[at : at + HASH_BYTES]
        filed = copies.filed.get(index)
        if filed is None:
            missing[digest] = index
        elif filed != (digest, data):
            row.wrong.append(index)
            if _is_leaf(*filed):
                row.astray.append(index)
    if missing:
        # A leaf that is in the log twice has one row, in either place.
        values = (list(missing), generation.number, size, list(missing.values()))
        for (digest,) in cursor(session).execute(_ELSEWHERE, values, binary=True).fetchall():
            del missing[digest]
        row.missing = sorted(missing.values())


def _by_hash(session: Session, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
    found = cursor(session).execute(_BY_HASH, (list(hashes),), binary=True)
    return {digest: data for digest, data in found.fetchall() if leaf_hash(data) == digest}


def _is_leaf(digest: bytes, data: bytes) -> bool:
    if leaf_hash(data) != digest:
        return False
    try:
        leaves.parse(data)
    except (ValueError, canonical_json.NotJSON, canonical_json.NotIJSON):
        return False
    return True


def entries(bundle: bytes) -> Sequence[bytes]:
    """Return the leaves of an entry bundle; none of one that is damaged."""
    try:
        return entry_bundles.parse(bundle)
    except ValueError:
        return ()
