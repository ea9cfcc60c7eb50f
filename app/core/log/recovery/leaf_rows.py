"""Restores a log's leaves from their copies: the row in `log_leaves` and the entry bundle.

The tile of level 0 has a leaf's hash and decides between them; the tree's root shows whether they
were right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

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

_ROWS = """
SELECT leaf_index, leaf_hash, data FROM log_leaves
 WHERE generation = %b AND leaf_index >= %b AND leaf_index < %b
"""
_BY_HASH = "SELECT data FROM log_leaves WHERE leaf_hash = %b"
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

_Row: TypeAlias = tuple[bytes, bytes]
"""A leaf's hash and data, as `log_leaves` has them."""


@dataclass(frozen=True)
class LeafRows:
    """The leaves of a log up to `size`, and their rows in `log_leaves`.

    `placed`: its leaves have their places there; those of a log that ended have them in its
    successor. With `repair` wrong rows are put right.
    """

    session: Session
    generation: Generation
    size: int
    placed: bool
    repair: bool

    def bundle(self, number: int) -> list[bytes]:
        """Return the data of a bundle's leaves. Raises `LogDamaged` for a leaf without a copy."""
        first = number * WIDTH
        width = min(self.size - first, WIDTH)
        places = [TileId(ENTRIES, number), TileId(0, number)]
        stored = tile_rows.read(self.session, self.generation, places)
        tile = stored.get(places[1], b"")
        bundle = entries(stored.get(places[0], b""))
        rows = self._rows(first, first + width) if self.placed else {}
        data = []
        for offset in range(width):
            digest = tile[offset * HASH_BYTES : (offset + 1) * HASH_BYTES]
            copies = list(bundle[offset : offset + 1])
            copies += [rows[first + offset][1]] if first + offset in rows else self._found(digest)
            if not copies:
                origin = self.generation.origin
                raise LogDamaged(f"Leaf {first + offset} of {origin} is lost: no copy is left.")
            data.append(next((each for each in copies if leaf_hash(each) == digest), copies[0]))
        return data

    def compare(self, first: int, data: Sequence[bytes]) -> int:
        """Return how many leaves of a bundle have another row, or none."""
        if not self.placed:
            return 0
        rows = self._rows(first, first + len(data))
        right = {index: (leaf_hash(each), each) for index, each in enumerate(data, first)}
        wrong = {index: row for index, row in rows.items() if row != right[index]}
        missing = {row[0]: index for index, row in right.items() if index not in rows}
        if missing:
            # A leaf that is in the log twice has one row, in either place.
            values = (list(missing), self.generation.number, self.size, list(missing.values()))
            for (digest,) in self._ask(_ELSEWHERE, values):
                del missing[digest]
        if self.repair and (wrong or missing):
            self._free(wrong)
            put = {right[index] for index in wrong} | {right[i] for i in missing.values()}
            at = {row: index for index, row in right.items()}
            now = database_now(self.session)
            columns = zip(*((ids.new(now), *row, at[row]) for row in put), strict=True)
            cursor(self.session).execute(_PUT, (self.generation.number, *map(list, columns)))
        return len(wrong) + len(missing)

    def beyond(self) -> int:
        """Return how many rows have a place beyond the log's end; with `repair` none has."""
        found, start = 0, self.size
        while self.placed:
            rows = list(self._ask(_BEYOND, (self.generation.number, start)))
            if not rows:
                break
            found += len(rows)
            start = rows[-1][0] + 1
            if self.repair:
                self._free({index: (digest, data) for index, digest, data in rows})
        return found

    def _free(self, rows: Mapping[int, _Row]) -> None:
        """Take rows from places that are not theirs: a leaf waits for its own, or the next."""
        cur = cursor(self.session)
        kept = [index for index, row in rows.items() if _is_leaf(*row)]
        cur.execute(_FREE, (self.generation.number, kept))
        cur.execute(_DROP, (self.generation.number, list(rows)))

    def _rows(self, first: int, stop: int) -> dict[int, _Row]:
        found = self._ask(_ROWS, (self.generation.number, first, stop))
        return {index: (digest, data) for index, digest, data in found}

    def _found(self, digest: bytes) -> list[bytes]:
        return [row[0] for row in self._ask(_BY_HASH, (digest,)) if leaf_hash(row[0]) == digest]

    def _ask(self, query: str, values: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
        yield from cursor(self.session).execute(query.encode(), values, binary=True).fetchall()


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
