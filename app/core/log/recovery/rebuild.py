"""Rebuilds tiles, entry bundles, rows and checkpoints of a log from its leaves.

The leaves must give the tree of the head outside, or of the last checkpoint without one; otherwise
nothing is changed.
"""

from dataclasses import replace

from sqlalchemy.orm import Session

from app.core.log import generations, publication
from app.core.log.generations import Generation
from app.core.log.head import head_guard
from app.core.log.recovery import checkpoint_rows, stored_tree
from app.core.log.recovery.checkpoint_rows import Known
from app.core.log.recovery.stored_tree import Report, StoredTree
from app.database import cursor
from app.errors import Conflict, LogDamaged
from app.ledger.checkpoints import Checkpoint
from app.lib.crypto.sealing import MasterKeys

_PLACED = "SELECT coalesce(max(leaf_index) + 1, 0) FROM log_leaves WHERE generation = %s"
_FOLLOWING = """
SELECT count(*)
  FROM (SELECT leaf_index, %(size)s + row_number() OVER (ORDER BY leaf_index) - 1 AS place
          FROM log_leaves WHERE generation = %(generation)s AND leaf_index >= %(size)s) AS rows
 WHERE leaf_index = place
"""


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
    _be_patient(session)
    head = head if head is not None and head.origin == generation.origin else None
    known = Known.of(session, generation, head)
    tree = StoredTree(session, generation, repair=repair, placed=True)
    try:
        tree.read(_size(session, generation, known), known.sizes)
    except LogDamaged:
        if head is not None and head.size > known.stored:
            raise head_guard.rolled_back(session, generation, head) from None
        raise
    if head is not None and not _is_ours(session, generation, head, tree):
        raise head_guard.rolled_back(session, generation, head)
    known.require(generation, tree.roots)
    _right_checkpoints(session, generation, known, tree, repair_with, has_ended=False)
    if repair:
        generations.mark(session, generation.number, head_kept=False, trouble=None)
    return tree.report


def rebuild_ended(
    session: Session, number: int, *, repair_with: MasterKeys | None = None
) -> Report:
    """Compute all of an ended log anew; otherwise as `rebuild`.

    Its last checkpoint is the one that its successor names, unless this database was restored to an
    earlier moment and never had that.
    """
    if repair_with is not None:
        generations.lock(session, wait=True)
    generation = generations.numbered(session, number)
    successor = generations.numbered(session, number + 1)
    if generation is None or successor is None:
        raise Conflict(f"There is no log {number} that has ended.")
    _be_patient(session)
    outside = successor.predecessor
    outside = outside if outside is not None and outside.origin == generation.origin else None
    known = Known.of(session, generation, outside)
    if outside is not None and known.stored < outside.size:
        # Tiles are committed with their checkpoint: those of a larger tree show that one is lost.
        held = stored_tree.extent(session, generation) > known.stored
        outside = outside if held else None
    known = replace(known, outside=outside)
    tree = StoredTree(session, generation, repair=repair_with is not None, placed=False)
    tree.read(max(known.sizes, default=0), known.sizes)
    if outside is not None and outside.size <= known.stored:
        # Tiles prepared here after a restore may be of another tree.
        outside = outside if _is_ours(session, generation, outside, tree) else None
    known = replace(known, outside=outside)
    known.require(generation, tree.roots)
    _right_checkpoints(session, generation, known, tree, repair_with, has_ended=True)
    return tree.report


def _is_ours(
    session: Session, generation: Generation, outside: Checkpoint, tree: StoredTree
) -> bool:
    """Say whether this database has, or had by its own rows, the tree that is known outside."""
    stored = publication.root_at(session, generation, outside.size)
    return outside.root in (tree.roots[outside.size], stored)


def _be_patient(session: Session) -> None:
    cursor(session).execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")


def _size(session: Session, generation: Generation, known: Known) -> int:
    """Return how many leaves the log has, also where its newest checkpoint is lost."""
    cur = cursor(session)
    row = cur.execute(_PLACED, (generation.number,)).fetchone()
    placed = 0 if row is None else int(row[0])
    # A row far behind all others is no leaf of the log.
    size = max(0, *known.sizes, min(placed, stored_tree.extent(session, generation)))
    row = cur.execute(_FOLLOWING, {"generation": generation.number, "size": size}).fetchone()
    return size + (0 if row is None else int(row[0]))


def _right_checkpoints(
    session: Session,
    generation: Generation,
    known: Known,
    tree: StoredTree,
    repair_with: MasterKeys | None,
    *,
    has_ended: bool,
) -> None:
    proven = known.proven(tree.roots)
    for right in checkpoint_rows.wrong(session, generation, tree.roots):
        tree.report.checkpoint = right.size
        if repair_with is not None:
            checkpoint_rows.restore(
                session, repair_with, generation, right, proven=proven, has_ended=has_ended
            )
