"""Reads the log from its entry bundles and recomputes every root.

A root that equals the signed one proves every leaf read so far, without trust in stored hashes.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256

from sqlalchemy.orm import Session

from app.core.log import tile_rows
from app.core.log.generations import Generation
from app.core.log.publication import MENDED_BY, Published
from app.core.verification.time_budget import Deadline
from app.database import cursor
from app.errors import LogDamaged
from app.ledger import entry_bundles, tiles
from app.ledger.frontier import Frontier
from app.ledger.merkle import HASH_BYTES, subtrees
from app.ledger.tile_stream import TileStream
from app.ledger.tiles import ENTRIES, WIDTH, Tile, TileId

_AT_ONCE = 16
# Ours have a twentieth of that; a longer one must not fill the memory.
_LONGEST = 1024 * 1024

_BUNDLES = f"""
SELECT number, CASE WHEN octet_length(data) <= {_LONGEST} THEN data END FROM log_tiles
 WHERE generation = %s AND level = {ENTRIES} AND number >= %s AND number < %s ORDER BY number
"""


class Walk:
    """One pass over the leaves of a log, from the one at `begin` (a multiple of 256) to `end`.

    `roots` holds the root at each size asked for, once `bundles` has passed it; `wrong_tile` is the
    first stored tile that is not as the leaves give it, of a walk from the first leaf on.
    """

    def __init__(
        self, session: Session, generation: Generation, end: int, sizes: Iterable[int] = ()
    ) -> None:
        """`sizes` are those whose roots are wanted besides that of `end`; those beyond get none."""
        self._session = session
        self._generation = generation
        self._end = end
        self._wanted = sorted({end, *(size for size in sizes if 0 <= size <= end)})
        self._tree = Frontier()
        self._tiles: TileStream | None = TileStream()
        self._computed: dict[TileId, bytes] = {}
        self.roots: dict[int, bytes] = {}
        self.wrong_tile: Tile | None = None

    def begin_at(self, size: int) -> None:
        """Begin behind the first `size` leaves, whose hashes are taken from stored tiles.

        The roots are right all the same, or the tiles are wrong. Raises `LogDamaged` without them.
        """
        self._tiles = None
        places = subtrees(0, size)
        stored = tile_rows.read(self._session, self._generation, tiles.holding(places))
        try:
            read = tiles.reader(stored.__getitem__)
            self._tree = Frontier(size, [read(*each) for each in places])
        except (KeyError, ValueError):
            raise LogDamaged(f"A tile of the tree at size {size} is missing or narrow.") from None

    def bundles(self, deadline: Deadline) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Yield (number of its first leaf, the bundle's bytes, its leaves' data) of each bundle.

        Raises `LogDamaged` where one is missing or unreadable, `TakesLonger`.
        """
        self._note_roots(b"")
        for number, bundle in self._stored():
            deadline.check()
            first = number * WIDTH
            data = self._parsed(number, bundle, min(self._end - first, WIDTH))
            row = b"".join([sha256(b"\x00" + each).digest() for each in data])
            self._note_roots(row)
            self._take(row, is_last=first + len(data) == self._end)
            yield first, bundle, data
        self._compare()

    def _take(self, row: bytes, *, is_last: bool) -> None:
        """Let the tree grow by the hashes of a bundle's leaves, and compute the tiles over them."""
        is_full = len(row) == WIDTH * HASH_BYTES
        of_row = self._tree.append(row) if is_full else b""
        if self._tiles is not None:
            self._computed |= self._tiles.append(row, of_row) if is_full else {}
            if is_last:
                self._computed |= self._tiles.partial(b"" if is_full else row)
            if len(self._computed) >= _AT_ONCE:
                self._compare()

    def _compare(self) -> None:
        """Hold the tiles that are as wide as they get against those that are stored."""
        stored = tile_rows.read(self._session, self._generation, self._computed)
        for where in sorted(self._computed):
            data = self._computed[where]
            # One that is stored may be wider: its tree is prepared, and not published.
            tile = Tile(*where, len(data) // HASH_BYTES)
            try:
                found = tiles.cut(stored.get(where, b""), tile.width)
            except ValueError:
                found = b""
            if self.wrong_tile is None and found != data:
                self.wrong_tile = tile
        self._computed = {}

    def _note_roots(self, row: bytes) -> None:
        """Keep the roots that are wanted of sizes within this row of leaf hashes."""
        begin = self._tree.size
        while self._wanted and self._wanted[0] <= begin + len(row) // 32:
            size = self._wanted.pop(0)
            if size >= begin:
                self.roots[size] = self._tree.root(row[: (size - begin) * 32])

    def _stored(self) -> Iterator[tuple[int, bytes]]:
        expected = self._tree.size // WIDTH
        last = -(-self._end // WIDTH)
        cur = cursor(self._session)
        for start in range(expected, last, _AT_ONCE):
            stop = min(start + _AT_ONCE, last)
            found = cur.execute(
                _BUNDLES.encode(), (self._generation.number, start, stop), binary=True
            ).fetchall()
            for number, (stored, data) in zip(
                range(start, stop), [*found, (None, None)], strict=False
            ):
                if stored != number or data is None:
                    raise _damaged(number, "missing or too large")
                yield number, data

    def _parsed(self, number: int, bundle: bytes, width: int) -> list[bytes]:
        try:
            data = entry_bundles.parse(bundle)[:width]
        except ValueError:
            raise _damaged(number, "no entry bundle") from None
        if len(data) < width:
            raise _damaged(number, "too narrow")
        return data


def leaves_of(session: Session, last: Published, number: int) -> list[bytes]:
    """Return the data of a bundle's leaves, after a walk has proven them."""
    values = (last.generation.number, number, number + 1)
    row = cursor(session).execute(_BUNDLES.encode(), values, binary=True).fetchone()
    width = min(last.checkpoint.size - number * WIDTH, WIDTH)
    return entry_bundles.parse(row[1])[:width] if row is not None and width > 0 else []


def _damaged(number: int, how: str) -> LogDamaged:
    path = Tile(ENTRIES, number).path
    return LogDamaged(f"The stored {path} is {how}. {MENDED_BY}")
