"""Rebuilds tiles, entry bundles, rows and the newest checkpoint of a log from its leaves.

The leaves must give the tree of the head outside, or of the last checkpoint without one; otherwise
nothing is changed. It streams: memory holds some thousand leaves and the partial tiles.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from app.core.log import generations, publication, tile_rows
from app.core.log.generations import Generation
from app.core.log.head import head_guard
from app.core.log.publication import StoredCheckpoint
from app.core.log.recovery import leaf_copies
from app.database import cursor
from app.errors import Conflict, LogDamaged
from app.ledger import entry_bundles
from app.ledger.checkpoints import Checkpoint
from app.ledger.frontier import Frontier
from app.ledger.merkle import EMPTY_ROOT, HASH_BYTES
from app.ledger.tile_stream import TileStream
from app.ledger.tiles import ENTRIES, WIDTH, Tile, TileId

_AT_ONCE = 128

_STORED = "SELECT level, number FROM log_tiles WHERE generation = %s ORDER BY level, number"
_PLACED = "SELECT coalesce(max(leaf_index) + 1, 0) FROM log_leaves WHERE generation = %s"


@dataclass
class Report:
    """What was read, and what is stored otherwise.

    `wrong` are the tiles whose bytes are others, or that should not be there; `rows` how many
    leaves have another row in `log_leaves`, or none; `checkpoint` is the size whose row is missing
    or wrong.
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


def rebuild(
    session: Session, head: Checkpoint | None, *, repair: bool, number: int | None = None
) -> Report:
    """Compute all of a log anew; with `repair` store what differs.

    `head` is what was read outside before, if anything; `number` names an ended log, None the
    newest. To look takes a session with a snapshot; to repair holds the log, so nothing is
    integrated meanwhile. Raises `LogRolledBack` where the head is of another tree, `LogDamaged`
    where what is left cannot give the tree that was published.
    """
    newest = generations.lock(session, wait=True) if repair else generations.newest(session)
    if newest is None:
        raise Conflict("The log has not begun.")
    generation = newest if number is None else generations.numbered(session, number)
    if generation is None:
        raise Conflict(f"There is no log {number}.")
    cursor(session).execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
    head = head if head is not None and head.origin == generation.origin else None
    last = publication.row(session, generation)
    placed = generation.number == newest.number
    size = max(
        _placed(session, generation) if placed else 0,
        0 if last is None else last.checkpoint.size,
        0 if head is None else head.size,
    )
    reading = _Reading(session, generation, repair=repair, placed=placed)
    try:
        known = (head, None if last is None else last.checkpoint)
        reading.read(size, {each.size for each in known if each is not None})
    except LogDamaged:
        if head is not None and (last is None or head.size > last.checkpoint.size):
            raise head_guard.rolled_back(session, generation, head) from None
        raise
    _require_published(session, generation, reading.roots, head, last)
    reading.right_checkpoints()
    if repair and placed:
        generations.mark(session, generation.number, head_kept=False, trouble=None)
    return reading.report


def _placed(session: Session, generation: Generation) -> int:
    row = cursor(session).execute(_PLACED, (generation.number,)).fetchone()
    return 0 if row is None else int(row[0])


def _require_published(
    session: Session,
    generation: Generation,
    roots: Mapping[int, bytes],
    head: Checkpoint | None,
    last: StoredCheckpoint | None,
) -> None:
    """Raise `LogHalted` unless these roots are those of the tree that was published."""
    if head is not None and roots[head.size] != head.root:
        if publication.root_at(session, generation, head.size) != head.root:
            raise head_guard.rolled_back(session, generation, head)
        raise _other_root(generation, head.size)
    if last is None:
        if head is None:
            raise LogDamaged(
                f"Not one checkpoint of {generation.origin} is left, and none is kept outside: "
                "nothing shows what was published."
            )
        return
    size = last.checkpoint.size
    found = Checkpoint(generation.origin, size, roots[size])
    is_under_head = head is not None and head.size >= size
    if not is_under_head and found not in (last.checkpoint, last.signed):
        raise _other_root(generation, size)


def _other_root(generation: Generation, size: int) -> LogDamaged:
    return LogDamaged(
        f"The leaves give another root than {generation.origin} published at {size}: more of them "
        "were changed than their copies can tell. Restore these tables from a backup."
    )


class _Reading:
    """One pass over a log: what was read, what differs, and with `repair` put right."""

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

    def right_checkpoints(self) -> None:
        """Find the rows of checkpoints whose root is another, and the newest if it is missing.

        One without a signature that holds is prepared again: the next integration signs it, once
        the head outside says the same.
        """
        newest = max(self.roots)
        for size, root in self.roots.items():
            if size == 0 < newest:
                continue
            right = Checkpoint(self._generation.origin, size, root)
            row = publication.row(self._session, self._generation, size)
            if row is None and size < newest:
                continue
            if row is None or row.checkpoint != right or (row.note and row.signed != right):
                self.report.checkpoint = size
                if self._repair:
                    publication.restore(self._session, self._generation, right)

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
