"""Grows a log's tree again from its leaves, and compares the stored tiles with it.

A root that equals the signed one proves every leaf read so far, without trust in stored hashes. The
daily verification and `log rebuild` walk by this.
"""

from collections.abc import Iterable, Iterator

from sqlalchemy.orm import Session

from app.core.log import tile_rows
from app.core.log.generations import Generation
from app.core.log.publication import MENDED_BY, Published
from app.database import cursor
from app.errors import LogDamaged
from app.ledger import tiles
from app.ledger.merkle import EMPTY_ROOT, leaf_hash
from app.ledger.tiles import ENTRIES, WIDTH, Tile, TileId

_AT_ONCE = 16
# Ours have a twentieth of that; a longer one must not fill the memory.
_LONGEST = 1024 * 1024

_BUNDLES = f"""
SELECT number, CASE WHEN octet_length(data) <= {_LONGEST} THEN data END FROM log_tiles
 WHERE generation = %s AND level = {ENTRIES} AND number >= %s AND number < %s ORDER BY number
"""


class TreeWalk:
    """One pass over the leaves of a log, up to `end`; it takes them a bundle at a time.

    `roots` has the root at `end` and at each of `sizes` once the walk passed it. `wrong` are the
    stored tiles that the leaves do not give, of those `compared`.
    """

    def __init__(
        self,
        generation: Generation,
        end: int,
        sizes: Iterable[int] = (),
        *,
        exact: bool = False,
        repair: bool = False,
    ) -> None:
        """`exact`: no stored tile is wider (of a prepared tree), and entry bundles are compared.

        With `repair` right tiles are written in the place of wrong ones.
        """
        self.roots: dict[int, bytes] = {0: EMPTY_ROOT}
        self.wrong: list[TileId] = []
        self.compared: set[TileId] = set()
        self._generation = generation
        self._end = end
        self._exact = exact
        self._repair = repair
        self._wanted = sorted({end, *(size for size in sizes if size <= end)} - {0})
        self._compares = True
        self._grown = 0
        # The partial tiles of the tree so far, and leaf hashes that it does not hold yet.
        self._edge: dict[TileId, bytes] = {}
        self._waiting: list[bytes] = []
        self._computed: dict[TileId, bytes] = {}

    def begin_at(self, session: Session, size: int, *, compare: bool = False) -> None:
        """Begin behind the first `size` leaves (a multiple of 256), by stored tiles.

        The root at the end proves these all the same. Without `compare` those that follow are not
        compared either. Raises `LogDamaged` without them.
        """
        self._compares = compare
        edge = tiles.edge(size)
        stored = tile_rows.read(session, self._generation, [each.id for each in edge])
        try:
            self._edge = {each.id: tiles.cut(stored[each.id], each.width) for each in edge}
        except (KeyError, ValueError):
            raise LogDamaged(f"A tile of the tree at size {size} is missing or narrow.") from None
        self._grown = size

    def add(self, session: Session, data: list[bytes]) -> None:
        """Let the tree grow by the leaves of the next entry bundle: 256, or fewer at the end."""
        if self._exact:
            number = (self._grown + len(self._waiting)) // WIDTH
            self._computed[TileId(ENTRIES, number)] = tiles.encode_entries(data)
        self._waiting += map(leaf_hash, data)
        ends = self._grown + len(self._waiting) == self._end
        if len(self._waiting) >= _AT_ONCE * WIDTH or ends:
            self._grow()
            self._compare(session, ends=ends)

    def read(self, session: Session, until: int) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Let the tree grow by the stored entry bundles of the next leaves, up to `until`.

        Yields of each the number of its first leaf, its bytes and its leaves' data. Raises
        `LogDamaged` where one is missing or unreadable.
        """
        begin, last = (self._grown + len(self._waiting)) // WIDTH, -(-until // WIDTH)
        for start in range(begin, last, _AT_ONCE):
            stop = min(start + _AT_ONCE, last)
            place = (self._generation.number, start, stop)
            found = cursor(session).execute(_BUNDLES.encode(), place, binary=True)
            rows: dict[int, bytes | None] = dict(found.fetchall())
            for number in range(start, stop):
                width = min(until - number * WIDTH, WIDTH)
                bundle = rows.get(number)
                try:
                    data = [] if bundle is None else tiles.parse_entries(bundle)[:width]
                except ValueError:
                    data = []
                if bundle is None or len(data) < width:
                    path = Tile(ENTRIES, number).path
                    raise LogDamaged(
                        f"The stored {path} is missing, no entry bundle, or too narrow. {MENDED_BY}"
                    )
                self.add(session, data)
                yield number * WIDTH, bundle, data

    def _grow(self) -> None:
        growth = tiles.grow(self._grown, self._edge.__getitem__, self._waiting)
        self._grown += len(self._waiting)
        self._waiting = []
        known = {**self._edge, **growth.changed}
        while self._wanted and self._wanted[0] <= self._grown:
            size = self._wanted.pop(0)
            self.roots[size] = tiles.root(size, known.__getitem__)
        self._edge = {each.id: known[each.id] for each in tiles.edge(self._grown)}
        self._computed |= growth.changed

    def require(self, last: Published) -> None:
        """Raise `LogDamaged` unless the leaves and tiles are those of this checkpoint."""
        size = last.checkpoint.size
        wrong = Tile(*min(self.wrong)).path if self.wrong else None
        if self.roots.get(size) != last.checkpoint.root:
            # Tiles are written with their entries: the first tile that differs is the place.
            where = "in no entry that differs from its tile" if wrong is None else wrong
            where = where.replace("tile/0/", "tile/entries/")
            raise LogDamaged(
                f"The leaves give another root than was signed at {size}: {where}. {MENDED_BY}"
            )
        if wrong is not None:
            raise LogDamaged(f"The stored {wrong} is not what the leaves give. {MENDED_BY}")

    def _compare(self, session: Session, *, ends: bool) -> None:
        """Compare the tiles that are as wide as they get, of a walk from the first leaf on."""
        if not self._compares:
            self._computed = {}
        computed, partial = self._computed, {} if ends else self._edge
        self._computed = {where: data for where, data in computed.items() if where in partial}
        computed = {where: data for where, data in computed.items() if where not in partial}
        stored = tile_rows.read(session, self._generation, computed)
        right = bytes.__eq__ if self._exact else bytes.startswith
        wrong = {
            where: data
            for where, data in computed.items()
            if not right(stored.get(where, b""), data)
        }
        self.wrong += wrong
        self.compared.update(computed)
        if self._repair and wrong:
            tile_rows.write(session, self._generation, wrong)
