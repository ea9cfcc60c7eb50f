"""Rebuilds tiles, entry bundles, rows and checkpoints of a log from its leaves.

The leaves must give the tree of the head outside, or of the last checkpoint without one; otherwise
nothing is changed. The tree is grown by the walk of the daily verification.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from app.core.log import generations, publication
from app.core.log.generations import Generation
from app.core.log.head import head_guard
from app.core.log.recovery import checkpoint_rows, leaf_rows
from app.core.log.recovery.checkpoint_rows import Known
from app.core.log.recovery.leaf_rows import LeafRows
from app.core.log.tree_walk import TreeWalk
from app.database import cursor
from app.errors import Conflict, LogDamaged
from app.ledger.checkpoints import Checkpoint
from app.ledger.merkle import HASH_BYTES
from app.ledger.tiles import ENTRIES, WIDTH, Tile, TileId
from app.lib.crypto.sealing import MasterKeys

_PLACED = "SELECT coalesce(max(leaf_index) + 1, 0) FROM log_leaves WHERE generation = %s"
_FOLLOWING = """
SELECT count(*)
  FROM (SELECT leaf_index, %(size)s + row_number() OVER (ORDER BY leaf_index) - 1 AS place
          FROM log_leaves WHERE generation = %(generation)s AND leaf_index >= %(size)s) AS rows
 WHERE leaf_index = place
"""
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


def rebuild(
    session: Session, head: Checkpoint | None, *, repair_with: MasterKeys | None = None
) -> Report:
    """Compute all of the newest log anew; with keys to sign by, store what differs.

    `head` is what was read outside before, if anything. A check takes a session with a snapshot; a
    repair holds the log, so nothing is integrated meanwhile. Raises `LogRolledBack` where the head
    is of another tree, `LogDamaged` where what is left cannot give the tree that was published.
    """
    repair = repair_with is not None
    generation = generations.lock(session, wait=True) if repair else generations.newest(session)
    if generation is None:
        raise Conflict("The log has not begun.")
    head = head if head is not None and head.origin == generation.origin else None
    known = Known.of(session, generation, head)
    size = _size(session, generation, known)
    try:
        report, roots = _grown(session, generation, size, known.sizes, placed=True, repair=repair)
    except LogDamaged:
        if head is not None and head.size > known.stored:
            raise head_guard.rolled_back(session, generation, head) from None
        raise
    if head is not None and not _is_ours(session, generation, head, roots):
        raise head_guard.rolled_back(session, generation, head)
    report.checkpoint = checkpoint_rows.put_right(
        session, generation, known, roots, repair_with, has_ended=False
    )
    if repair:
        generations.mark(session, generation.number, head_kept=False, trouble=None)
    return report


def rebuild_ended(
    session: Session, number: int, *, repair_with: MasterKeys | None = None
) -> Report:
    """Compute all of an ended log anew; otherwise as `rebuild`.

    Its last checkpoint is the one that its successor names, unless this database was restored to an
    earlier moment and never had that.
    """
    repair = repair_with is not None
    if repair:
        generations.lock(session, wait=True)
    generation = generations.numbered(session, number)
    successor = generations.numbered(session, number + 1)
    if generation is None or successor is None:
        raise Conflict(f"There is no log {number} that has ended.")
    outside = successor.predecessor
    outside = outside if outside is not None and outside.origin == generation.origin else None
    known = Known.of(session, generation, outside)
    is_lost = outside is not None and known.stored < outside.size
    # Tiles are committed with their checkpoint: those of a larger tree show that one is lost.
    if is_lost and _extent(session, generation) <= known.stored:
        known = known.without_outside()
    size = max(known.sizes, default=0)
    report, roots = _grown(session, generation, size, known.sizes, placed=False, repair=repair)
    # Tiles prepared here after a restore may be of another tree.
    if outside and not is_lost and not _is_ours(session, generation, outside, roots):
        known = known.without_outside()
    report.checkpoint = checkpoint_rows.put_right(
        session, generation, known, roots, repair_with, has_ended=True
    )
    return report


def _grown(
    session: Session,
    generation: Generation,
    size: int,
    sizes: set[int],
    *,
    placed: bool,
    repair: bool,
) -> tuple[Report, dict[int, bytes]]:
    """Grow the tree again, compare rows and tiles with it; return the roots at `sizes` as well.

    Raises `LogDamaged` where a leaf is lost.
    """
    cur = cursor(session)
    cur.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
    rows = LeafRows(session, generation, size, placed, repair)
    report = Report(leaves=size, rows=rows.beyond())
    walk = TreeWalk(generation, size, sizes, exact=True, repair=repair)
    for first in range(0, size, WIDTH):
        data = rows.bundle(first // WIDTH)
        report.rows += rows.compare(first, data)
        walk.add(session, data)
    stored = cur.execute(_STORED, (generation.number,), binary=True).fetchall()
    strays = [TileId(*row) for row in stored if TileId(*row) not in walk.compared]
    if repair:
        cur.executemany(
            "DELETE FROM log_tiles WHERE generation = %s AND level = %s AND number = %s",
            [(generation.number, *stray) for stray in strays],
        )
    report.tiles, report.wrong = len(walk.compared), walk.wrong + strays
    return report, walk.roots


def _is_ours(
    session: Session, generation: Generation, outside: Checkpoint, roots: dict[int, bytes]
) -> bool:
    """Say whether this database has, or had by its own rows, the tree that is known outside."""
    stored = publication.root_at(session, generation, outside.size)
    return outside.root in (roots[outside.size], stored)


def _extent(session: Session, generation: Generation) -> int:
    """Return how many leaves the last tile of level 0 or the last entry bundle reaches to."""
    found = cursor(session).execute(_LAST, (generation.number, [ENTRIES, 0]), binary=True)
    ends = [0]
    for level, number, data in found.fetchall():
        held = len(leaf_rows.entries(data)) if level == ENTRIES else len(data) // HASH_BYTES
        ends.append(number * WIDTH + held)
    return max(ends)


def _size(session: Session, generation: Generation, known: Known) -> int:
    """Return how many leaves the log has, also where its newest checkpoint is lost."""
    cur = cursor(session)
    row = cur.execute(_PLACED, (generation.number,)).fetchone()
    placed = 0 if row is None else int(row[0])
    # A row far behind all others is no leaf of the log.
    size = max(0, *known.sizes, min(placed, _extent(session, generation)))
    row = cur.execute(_FOLLOWING, {"generation": generation.number, "size": size}).fetchone()
    return size + (0 if row is None else int(row[0]))
