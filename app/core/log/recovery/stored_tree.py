"""The tree of a log, computed from its leaves and held against all that is stored of it.

With `repair` what differs is put right. It streams: memory holds some thousand leaves and the
partial tiles.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from app.core.log import tile_rows
from app.core.log.generations import Generation
from app.core.log.recovery import leaf_copies
from app.database import cursor
from app.ledger import entry_bundles
from app.ledger.frontier import Frontier
from app.ledger.merkle import EMPTY_ROOT, HASH_BYTES
from app.ledger.tile_stream import TileStream
from app.ledger.tiles import ENTRIES, WIDTH, Tile, TileId

_AT_ONCE = 128

_STORED = "SELECT level, number FROM log_tiles WHERE generation = %s ORDER BY level, number"
_LAST = """
SELECT DISTINCT ON (level) level, number, data FROM log_tiles
 WHERE generation = %b AND level = ANY (%b) ORDER BY level, number DESC
"""


@dataclass
class Report:
    """Counts of what was read, and differences from what should be stored.

    `wrong` are the tiles whose bytes are others, or that should not be there; `rows` how many
    leaves have another row in `log_leaves`, or none, and rows of no leaf; `checkpoint` is the size
    whose row is missing or wrong.
    """

    leaves: int = 0
    tiles: int = 0
    wrong: list[TileId] = field(default_factory=list)
    rows: int = 0
    checkpoint: int | None = None

    @property
    def first(self) -> str | None:
        """The path of the first tile that differs."""
        return Tile(*min(self.wrong)).path if self.wrong else None

    @property
    def is_identical(self) -> bool:
        """Whether everything is stored as it has to be."""
        return not self.wrong and not self.rows and self.checkpoint is None

    def lines(self, *, repair: bool) -> Iterator[str]:
        """Yield what was found, and with `repair` put right, for a person."""
        yield f"{self.leaves} leaves, {self.tiles} tiles"
        if self.is_identical:
            yield "every stored tile is identical"
            return
        if self.wrong:
            yield f"{len(self.wrong)} tiles differ, the first is {self.first}"
        if self.rows:
            yield f"{self.rows} leaves have no row in log_leaves, or another's"
        if self.checkpoint is not None:
            yield f"the checkpoint at {self.checkpoint} is missing or was changed"
        yield "they were written anew" if repair else "nothing was changed"


def extent(session: Session, generation: Generation) -> int:
    """Return how many leaves the last tile of level 0 or the last entry bundle reaches to."""
    found = cursor(session).execute(_LAST, (generation.number, [ENTRIES, 0]), binary=True)
    ends = [0]
    for level, number, data in found.fetchall():
        held = len(leaf_copies.entries(data)) if level == ENTRIES else len(data) // HASH_BYTES
        ends.append(number * WIDTH + held)
    return max(ends)


class StoredTree:
    """One pass over a log: `report` is what differs, `roots` are those at the sizes asked for.

    `placed` says whether its leaves have their places in `log_leaves` (`leaf_copies.rows`).
    """

    def __init__(
        self, session: Session, generation: Generation, *, repair: bool, placed: bool
    ) -> None:
        self.report = Report()
        self.roots = {0: EMPTY_ROOT}
        self._session = session
        self._generation = generation
        self._repair = repair
        self._placed = placed
        self._computed: dict[TileId, bytes] = {}
        self._expected: set[TileId] = set()

    def read(self, size: int, sizes: set[int]) -> None:
        """Read the leaves up to `size`, note the roots there and at `sizes`, compare the tiles.

        Raises `LogDamaged` where a leaf is lost.
        """
        if self._placed:
            self.report.rows += leaf_copies.beyond(
                self._session, self._generation, size, repair=self._repair
            )
        tree, stream, rest = Frontier(), TileStream(), b""
        wanted = sorted({size, *sizes} - {0})
        for row in leaf_copies.rows(self._session, self._generation, size, placed=self._placed):
            self._right_rows(row)
            while wanted and wanted[0] <= row.first + len(row.data):
                at = wanted.pop(0)
                self.roots[at] = tree.root(row.hashes[: (at - row.first) * HASH_BYTES])
            self._computed[TileId(ENTRIES, row.first // WIDTH)] = entry_bundles.encode(row.data)
            if len(row.data) == WIDTH:
                self._computed |= stream.append(row.hashes, tree.append(row.hashes))
            else:
                rest = row.hashes
            if len(self._computed) >= _AT_ONCE:
                self._compare()
        self._computed |= stream.partial(rest)
        self._compare()
        self._drop_strays()
        self.report.leaves = size

    def _right_rows(self, row: leaf_copies.BundleCopy) -> None:
        self.report.rows += len(row.wrong) + len(row.missing)
        if self._repair and (row.wrong or row.missing):
            leaf_copies.restore(self._session, self._generation, row)

    def _compare(self) -> None:
        found = tile_rows.read(self._session, self._generation, self._computed)
        wrong = {where: data for where, data in self._computed.items() if found.get(where) != data}
        self.report.tiles += len(self._computed)
        self.report.wrong += wrong
        self._expected.update(self._computed)
        self._computed = {}
        if self._repair and wrong:
            tile_rows.write(self._session, self._generation, wrong)

    def _drop_strays(self) -> None:
        """Find tiles of a larger tree than there is."""
        cur = cursor(self._session)
        rows = cur.execute(_STORED, (self._generation.number,), binary=True).fetchall()
        strays = [TileId(*row) for row in rows if TileId(*row) not in self._expected]
        self.report.wrong += strays
        if self._repair:
            cur.executemany(
                "DELETE FROM log_tiles WHERE generation = %s AND level = %s AND number = %s",
                [(self._generation.number, *stray) for stray in strays],
            )
